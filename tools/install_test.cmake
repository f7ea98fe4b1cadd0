# cmake -DBUILD= -DSOURCE= -DCOMPILER= -DHAS_CUDA= -DPCRE2= -DPCRE2_INCLUDES= -P tools/install_test.cmake
# Installs the build under a temporary prefix, and builds and runs the examples against it as a
# project of its own, outside this one. PCRE2 stands under a prefix that no linker searches, and must
# be taken from there: it is the one library of Quire's that has no CMake files.
set(temp $ENV{TMPDIR})
if(NOT temp)
  set(temp /tmp)
endif()
string(RANDOM LENGTH 12 random)
set(work ${temp}/quire_install_test.${random})

# The lines that README.md shows stand in it as they are.
file(READ ${SOURCE}/README.md readme)
if(NOT readme MATCHES "\n```cmake\n([^`]*)```")
  message(FATAL_ERROR "README.md: expected lines of CMake, got none")
endif()
file(WRITE ${work}/project/CMakeLists.txt "
cmake_minimum_required(VERSION 3.25)
project(uses_quire LANGUAGES CXX)
add_executable(app engine_minimal.cc)
${CMAKE_MATCH_1}
add_executable(attention_only attention_only.cc)
target_link_libraries(attention_only PRIVATE quire::attention)
")
file(COPY ${SOURCE}/examples/attention_only.cc ${SOURCE}/examples/engine_minimal.cc
  DESTINATION ${work}/project)

cmake_path(GET PCRE2 FILENAME pcre2_name)
file(REAL_PATH ${PCRE2} pcre2_file)
file(MAKE_DIRECTORY ${work}/pcre2/lib)
file(COPY_FILE ${pcre2_file} ${work}/pcre2/lib/${pcre2_name})
file(COPY ${PCRE2_INCLUDES}/pcre2.h DESTINATION ${work}/pcre2/include)

function(step)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result COMMAND_ECHO STDOUT)
  if(NOT result EQUAL 0)
    file(REMOVE_RECURSE ${work})
    message(FATAL_ERROR "failed: ${ARGV}")
  endif()
endfunction()

step(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix)
step(${CMAKE_COMMAND} -G Ninja -S ${work}/project -B ${work}/build
  -DCMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_PREFIX_PATH=${work}/prefix\;${work}/pcre2")
step(grep -q "${work}/pcre2/lib/${pcre2_name}" ${work}/build/build.ninja)
step(${CMAKE_COMMAND} --build ${work}/build)
step(${work}/build/attention_only 64)
step(${work}/build/app ${SOURCE}/src/testing/testdata/tiny_chat --dummy --device auto)
if(HAS_CUDA)
  step(grep -q libquire_runner_cuda.a ${work}/build/build.ninja)
endif()
file(REMOVE_RECURSE ${work})
