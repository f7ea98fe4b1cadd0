# cmake -DBUILD= -DSOURCE= -DCOMPILER= -DINCLUDES=a|b -DUNITY= -P tools/installed_headers_test.cmake
# Installs the headers under a temporary prefix and expects that each compiles alone, with nothing of
# ours on the include path but the prefix, and that all compile together. A header that its own source
# includes before anything else has been compiled alone with that source, and is not again, unless
# UNITY says that sources are not compiled alone.
#
# A header is also as good as alone behind those that it includes itself, directly or not: they bring
# nothing that it does not bring. One compilation so does for a chain of headers, each of which is
# among what the next one includes, and takes as long as that of its last.
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
set(alone "")
foreach(header IN LISTS headers)
  string(APPEND all "#include \"${header}\"\n")
  string(REGEX REPLACE "^quire/(.*)\\.h$" "\\1" stem ${header})
  set(first "")
  if(NOT UNITY AND EXISTS ${SOURCE}/src/${stem}.cc)
    file(STRINGS ${SOURCE}/src/${stem}.cc first REGEX "^#include" LIMIT_COUNT 1)
  endif()
  if(NOT first STREQUAL "#include \"${stem}.h\"")
    list(APPEND alone ${header})
  endif()
endforeach()
file(WRITE ${work}/all.cc "${all}")

# Sets ${out} to the headers of ours that `header` includes, directly or not.
function(find_included header out)
  get_property(included GLOBAL PROPERTY "included by ${header}")
  get_property(is_known GLOBAL PROPERTY "included by ${header}" SET)
  if(NOT is_known AND EXISTS ${work}/prefix/include/${header})
    file(STRINGS ${work}/prefix/include/${header} lines REGEX "^#include \"")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include \"([^\"]*)\".*" "\\1" direct "${line}")
      find_included(${direct} more)
      list(APPEND included ${direct} ${more})
    endforeach()
    list(REMOVE_DUPLICATES included)
    set_property(GLOBAL PROPERTY "included by ${header}" "${included}")
  endif()
  set(${out} "${included}" PARENT_SCOPE)
endfunction()

# Those that include most come first: each begins a chain with what is left of the headers, and goes on
# with that of the included which itself includes most.
set(ordered "")
foreach(header IN LISTS alone)
  find_included(${header} included)
  list(LENGTH included count)
  math(EXPR key "100000 + ${count}")
  list(APPEND ordered "${key} ${header}")
endforeach()
list(SORT ordered ORDER DESCENDING)
list(TRANSFORM ordered REPLACE "^[0-9]+ " "")

set(sources ${work}/all.cc)
set(num_compiled 0)
while(ordered)
  list(POP_FRONT ordered header)
  string(REPLACE / . name ${header})
  set(chain "#include \"${header}\"\n")
  math(EXPR num_compiled "${num_compiled} + 1")
  find_included(${header} included)
  foreach(next IN LISTS ordered)  # a header comes behind all that include it
    if(next IN_LIST included)
      string(PREPEND chain "#include \"${next}\"\n")
      list(REMOVE_ITEM ordered ${next})
      find_included(${next} included)
    endif()
  endforeach()
  file(WRITE ${work}/${name}.cc "${chain}")
  list(APPEND sources ${work}/${name}.cc)
endwhile()

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
message("${num_headers} headers compile by themselves, in ${num_compiled} chains")
