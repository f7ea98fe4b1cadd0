# cmake -DEXAMPLE= -P attention_only_test.cmake
# Expects the example to print the same checksums at every page size, and to refuse size 0.
foreach(page_size 1 61 64 256)
  execute_process(COMMAND ${EXAMPLE} ${page_size} OUTPUT_VARIABLE output
    COMMAND_ERROR_IS_FATAL ANY COMMAND_ECHO STDOUT)
  message("${output}")
  string(REGEX MATCHALL "checksum [0-9a-f]+" checksums "${output}")
  if(NOT output MATCHES "^page size ${page_size}: " OR NOT checksums MATCHES "^[^;]+;[^;]+$")
    message(FATAL_ERROR "expected a line 'page size ${page_size}: ...' and two checksums")
  endif()
  if(NOT DEFINED expected)
    set(expected "${checksums}")
  elseif(NOT checksums STREQUAL expected)
    message(FATAL_ERROR "checksums differ from those at page size 1: ${expected}")
  endif()
endforeach()

execute_process(COMMAND ${EXAMPLE} 0 RESULT_VARIABLE result ERROR_VARIABLE errors)
if(NOT result EQUAL 1 OR NOT errors MATCHES "page_size: expected")
  message(FATAL_ERROR "page size 0: expected exit 1 and the reason, got ${result}: ${errors}")
endif()
