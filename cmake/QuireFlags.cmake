# Flags every target of ours is built with. Third-party headers come in as system headers, so that our
# warnings can be errors where we develop: CMAKE_COMPILE_WARNING_AS_ERROR, in the presets. Where Quire is
# only built, a warning of a compiler that we do not know yet is no reason to stop.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

add_library(quire_flags INTERFACE)
# -ffp-contract=off: a result must not depend on which expressions a compiler chose to fuse; where
# we want a fused multiply-add we write one.
target_compile_options(quire_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
    -Wnon-virtual-dtor -Woverloaded-virtual -ffp-contract=off -fno-math-errno>)
# GCC 12 sees overlapping copies in "literal" + std::string (its bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(quire_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
# Instrumented at -O1, it takes members of std::function for uninitialized (in <regex>).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND QUIRE_SANITIZE)
  target_compile_options(quire_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
endif()
# It is about types that headers define, and takes the files of a unity build for headers.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_UNITY_BUILD)
  target_compile_options(quire_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
# Where a whole test is one file, GCC takes a sixth of its time to collect garbage, from 128 MiB on; it
# now begins at 2 GiB, which none of the files reaches.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND QUIRE_UNITY_TESTS)
  target_compile_options(quire_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=2097152>)
endif()
if(QUIRE_SANITIZE)
  target_compile_options(quire_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${QUIRE_SANITIZE} -fno-sanitize-recover=all
      -fno-omit-frame-pointer>)
  # On x86-64 clang 14 writes what this check needs in front of every function, and cannot for the
  # parts that it cuts a coroutine into ("cannot represent a difference across sections").
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND QUIRE_SANITIZE MATCHES "undefined")
    target_compile_options(quire_flags INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=function>)
  endif()
  # With AddressSanitizer an access through a null pointer is reported anyway; vptr looks types up at
  # every call. Together they are an eighth of the time to compile.
  if(QUIRE_SANITIZE MATCHES "address" AND QUIRE_SANITIZE MATCHES "undefined")
    target_compile_options(quire_flags INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,vptr>)
  endif()
  target_compile_definitions(quire_flags INTERFACE QUIRE_SANITIZED)
  target_link_options(quire_flags INTERFACE -fsanitize=${QUIRE_SANITIZE})
endif()
if(QUIRE_FUZZ)
  # In the libraries too: the fuzzer steers by the branches it sees taken.
  target_compile_options(quire_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()
