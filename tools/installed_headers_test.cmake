# cmake -DBUILD= -DSOURCE= -DCOMPILER= -DINCLUDES=a|b -DUNITY= -P tools/installed_headers_test.cmake
# Installs the headers under a temporary prefix and expects that each compiles alone, with nothing of
# ours on the include path but the prefix, and that all compile together. A header that its own source
# includes before anything else has been compiled alone with that source, and is not again, unless
# UNITY says that sources are not compiled alone.
cmake_minimum_required(VERSION 3.25)

set(temp $ENV{TMPDIR})
if(NOT temp)
  set(temp /tmp)
endif()
string(RANDOM LENGTH 12 random)
set(work ${temp}/quire_headers_test.${random})

function(fail message)
  file(REMOVE_RECURSE ${work})
  message(FATAL_ERROR "${message}")
endfunction()

execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix
  --component headers OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(GLOB folders RELATIVE ${work}/prefix/include ${work}/prefix/include/*)
if(NOT folders STREQUAL quire)
  fail("include/: expected the folder quire alone, got ${folders}")
endif()

file(GLOB_RECURSE headers RELATIVE ${work}/prefix/include ${work}/prefix/include/quire/*.h)
set(all "")
set(sources ${work}/all.cc)
foreach(header IN LISTS headers)
  string(APPEND all "#include \"${header}\"\n")
  string(REGEX REPLACE "^quire/(.*)\\.h$" "\\1" stem ${header})
  set(first "")
  if(NOT UNITY AND EXISTS ${SOURCE}/src/${stem}.cc)
    file(STRINGS ${SOURCE}/src/${stem}.cc first REGEX "^#include" LIMIT_COUNT 1)
  endif()
  if(NOT first STREQUAL "#include \"${stem}.h\"")
    string(REPLACE / . name ${stem})
    file(WRITE ${work}/${name}.cc "#include \"${header}\"\n")
    list(APPEND sources ${work}/${name}.cc)
  endif()
endforeach()
file(WRITE ${work}/all.cc "${all}")

string(REPLACE "|" ";" includes "${INCLUDES}")
list(TRANSFORM includes PREPEND -I)
list(JOIN sources "\n" lines)
file(WRITE ${work}/sources "${lines}\n")
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
execute_process(RESULT_VARIABLE result COMMAND xargs -a ${work}/sources -P ${cores} -n 1
  ${COMPILER} -std=c++20 -fsyntax-only -Wall -Wextra -Werror -I${work}/prefix/include ${includes})
if(NOT result EQUAL 0)
  fail("an installed header does not compile by itself")
endif()
file(REMOVE_RECURSE ${work})
list(LENGTH headers num_headers)
message("${num_headers} headers compile by themselves")
