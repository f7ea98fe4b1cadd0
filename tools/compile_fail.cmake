# cmake -DCOMPILER= -DSOURCE= -DINCLUDES=a|b -P tools/compile_fail.cmake
# Expects SOURCE to compile, and to be refused with QUIRE_WRONG defined, by an error that speaks of
# a mismatch of the types that its line "// Mismatch: ..." names, as compilers spell them.
string(REPLACE "|" ";" includes "${INCLUDES}")
list(TRANSFORM includes PREPEND -I)
set(compile ${COMPILER} -std=c++20 -fsyntax-only ${includes} ${SOURCE})

file(STRINGS ${SOURCE} types REGEX "^// Mismatch: ")
string(REGEX REPLACE "^// Mismatch: " "" types "${types}")
separate_arguments(types)
if(NOT types)
  message(FATAL_ERROR "${SOURCE} has no line '// Mismatch: TYPE...'")
endif()

execute_process(COMMAND ${compile} RESULT_VARIABLE result ERROR_VARIABLE errors)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the right variant does not compile:\n${errors}")
endif()

execute_process(COMMAND ${compile} -DQUIRE_WRONG RESULT_VARIABLE result ERROR_VARIABLE errors)
if(result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} compiles with QUIRE_WRONG: the units no longer forbid it")
endif()
# GCC's words, then Clang's.
set(mismatch "error: (could not convert|cannot convert|conversion from|no match for|no matching")
string(APPEND mismatch "|no viable|invalid operands)")
if(NOT errors MATCHES "${mismatch}")
  message(FATAL_ERROR "refused, but not for a mismatch of types:\n${errors}")
endif()
foreach(type IN LISTS types)
  if(NOT errors MATCHES "[^A-Za-z_]${type}[^A-Za-z_]")
    message(FATAL_ERROR "refused, but the error does not name ${type}:\n${errors}")
  endif()
endforeach()
string(REGEX MATCH "[^\n]*error: [^\n]*" first_error "${errors}")
message(STATUS "refused: ${first_error}")
