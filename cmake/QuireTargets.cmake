# quire_library(FOLDER SOURCES...)   one library per folder of src/, linking what src/LAYERS allows
# quire_test(NAME [PLAIN] [COST seconds] [LABELS ...] SOURCES...)   a GoogleTest binary with Quire's test main;
#   the costly ones, by what they take under a sanitizer, are started first. PLAIN says that the libraries
#   take it, and not the test's own code
# quire_test_cases(NAME [LIBRARIES ...] SOURCES ...)   tests that several binaries run, each with a backend of
#   its own: compiled once, as those that are PLAIN, and one of the LIBRARIES of each
# quire_sanitized_share(PARTS SAMPLED_PARTS NAMES...)   in a sanitized build each of the tests runs one in
#   PARTS of the cases of each property, and at least one; with QUIRE_SAMPLE, one in SAMPLED_PARTS. The other
#   builds run every one. testing/test_main.cc and serve/serve_client.py read it
# quire_sampled_share(PARTS NAMES...)   the same for the other builds, with QUIRE_SAMPLE alone
# quire_without_leak_check(NAMES...)   where looking for leaks takes seconds, the tests do not: those of
#   arithmetic and of text, whose objects live no longer than a case. The others always do
# quire_seed(FAULT BINARY FILTER MESSAGE)   the fault, put back, makes the tests fail with the message
# quire_fuzz(NAME [CORPUS folder] SOURCES...)   a fuzz target, run as a test from its committed corpus:
#   by libFuzzer with QUIRE_FUZZ, otherwise by testing/fuzz_replay.cc

# The folders that `folder` may use, read from src/LAYERS.
function(quire_allowed_layers folder out)
  file(STRINGS "${PROJECT_SOURCE_DIR}/src/LAYERS" lines REGEX "^${folder}:")
  if(NOT lines)
    message(FATAL_ERROR "src/LAYERS has no line for folder '${folder}'")
  endif()
  string(REGEX REPLACE "^${folder}:[ ]*" "" allowed "${lines}")
  separate_arguments(allowed)
  set(${out} "${allowed}" PARENT_SCOPE)
endfunction()

function(quire_library folder)
  add_library(quire_${folder} STATIC ${ARGN})
  add_library(quire::${folder} ALIAS quire_${folder})
  set_target_properties(quire_${folder} PROPERTIES EXPORT_NAME ${folder})
  target_include_directories(quire_${folder} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(quire_${folder} PUBLIC cxx_std_20)
  target_link_libraries(quire_${folder} PRIVATE $<BUILD_INTERFACE:quire_flags>)
  # Instrumented code takes the compiler twice as long at -O1 as at the presets' -O0, which only the
  # layers whose loops the tests wait for give back.
  set(waited_for attn cache decode engine interop kernels runner)
  if(NOT QUIRE_SANITIZE STREQUAL "thread")  # whose tests are few
    list(APPEND waited_for io text textgen)
  endif()
  if(QUIRE_SANITIZE AND folder IN_LIST waited_for)
    target_compile_options(quire_${folder} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
  # Where dev is built at once: nothing waits for the command line's own code. GCC's warnings about what
  # may be uninitialised need -O1: a build of single files, and a release, have them.
  if(folder STREQUAL "cli" AND QUIRE_UNITY_TESTS AND NOT QUIRE_PLAIN_COST STREQUAL "" AND NOT QUIRE_SANITIZE)
    target_compile_options(quire_cli PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  endif()
  quire_allowed_layers(${folder} allowed)
  foreach(layer IN LISTS allowed)
    target_link_libraries(quire_${folder} PUBLIC quire_${layer})
  endforeach()
endfunction()

# The compiler is quicker with what is not optimised. Of a test that costs no more than
# QUIRE_PLAIN_COST, where that is set, what takes time is a library.
function(quire_optimise_test name cost)
  if(QUIRE_PLAIN_COST STREQUAL "")
    return()
  endif()
  set(level -O1)
  if(NOT cost GREATER QUIRE_PLAIN_COST)
    set(level -O0)
  endif()
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${level}>)
endfunction()

# The files of a test as one, where QUIRE_UNITY_TESTS is set.
function(quire_join_test name)
  if(QUIRE_UNITY_TESTS)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # as in QuireFlags.cmake
      target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
    endif()
  endif()
endfunction()

function(quire_test_cases name)
  if(NOT QUIRE_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(${name} OBJECT ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC quire_testing GTest::gtest ${arg_LIBRARIES} PRIVATE quire_flags)
  quire_join_test(${name})
  quire_optimise_test(${name} 0)
endfunction()

function(quire_test name)
  if(NOT QUIRE_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "PLAIN" "COST" "LABELS;SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE quire_flags quire_testing quire_test_main ${arg_LIBRARIES})
  quire_join_test(${name})
  if(arg_PLAIN)
    quire_optimise_test(${name} 0)
  else()
    quire_optimise_test(${name} "${arg_COST}")
  endif()
  add_test(NAME ${name} COMMAND ${name})
  # 77: testing/test_main.cc, where all of its tests were skipped
  set_tests_properties(${name} PROPERTIES
    LABELS "${arg_LABELS}" COST "${arg_COST}" SKIP_RETURN_CODE 77)
endfunction()

function(quire_sampled_share parts)
  if(QUIRE_TESTS AND QUIRE_SAMPLE AND NOT QUIRE_SANITIZE)
    set_property(TEST ${ARGN} APPEND PROPERTY ENVIRONMENT QUIRE_TEST_PARTS=${parts})
  endif()
endfunction()

function(quire_sanitized_share parts sampled_parts)
  if(QUIRE_SAMPLE)
    set(parts ${sampled_parts})
  endif()
  if(QUIRE_TESTS AND QUIRE_SANITIZE)
    set_property(TEST ${ARGN} APPEND PROPERTY ENVIRONMENT QUIRE_TEST_PARTS=${parts})
  endif()
endfunction()

# Before LLVM 16 the allocator of AddressSanitizer looks at all 2^28 places of AArch64's address space
# that may hold memory, several times, to find leaks: 3 s at the end of every process, however short.
function(quire_without_leak_check)
  if(QUIRE_TESTS AND QUIRE_SANITIZE MATCHES "address" AND CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64"
     AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16)
    set_property(TEST ${ARGN} APPEND PROPERTY ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
  endif()
endfunction()

function(quire_seed fault binary filter message)
  if(NOT QUIRE_TESTS OR NOT QUIRE_FAULTS)
    return()
  endif()
  set(name seed.${fault}.${binary})
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -DBINARY=$<TARGET_FILE:${binary}>
    -DFILTER=${filter} -DFAULT=${fault} "-DMESSAGE=${message}"
    -P ${PROJECT_SOURCE_DIR}/cmake/ExpectFault.cmake)
  set_tests_properties(${name} PROPERTIES LABELS seeds)
endfunction()

function(quire_fuzz name)
  if(NOT QUIRE_FUZZ AND NOT QUIRE_TESTS)
    return()
  endif()
  # Of two builds, the one with a sanitizer replays the corpus: it sees all that the other would.
  if(QUIRE_SAMPLE AND NOT QUIRE_SANITIZE)
    return()
  endif()
  cmake_parse_arguments(arg "" "CORPUS" "SOURCES;LIBRARIES" ${ARGN})
  set(seeds "")
  if(arg_CORPUS)
    file(GLOB seeds CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${arg_CORPUS}/*")
    if(NOT seeds)
      message(FATAL_ERROR "${name}: no files in ${arg_CORPUS}")
    endif()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE quire_flags quire_testing ${arg_LIBRARIES})
  if(QUIRE_FUZZ)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    if(NOT TARGET quire_fuzzers)
      add_custom_target(quire_fuzzers)
    endif()
    add_dependencies(quire_fuzzers ${name})
    # As files, not as a folder: a folder that libFuzzer is given, it writes to.
    if(seeds)
      list(JOIN seeds "," seeds)
      set(seeds "-seed_inputs=${seeds}")
    endif()
    add_test(NAME ${name} COMMAND ${name} -runs=20000 -seed=1 -max_len=4096 ${seeds})
  else()
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src/testing/fuzz_replay.cc)
    quire_optimise_test(${name} 0)
    add_test(NAME ${name} COMMAND ${name} ${seeds})
    quire_without_leak_check(${name})
  endif()
  set_tests_properties(${name} PROPERTIES LABELS fuzz)
endfunction()
