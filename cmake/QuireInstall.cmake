# `cmake --install` gives the program quire, headers, the libraries and a CMake package:
# find_package(quire), and link quire::quire, or quire::attention for attention alone.
include(CMakePackageConfigHelpers)

add_library(quire_attention INTERFACE)
add_library(quire::attention ALIAS quire_attention)
set_target_properties(quire_attention PROPERTIES EXPORT_NAME attention)
target_link_libraries(quire_attention INTERFACE quire_kernels quire_cache)

add_library(quire_all INTERFACE)
add_library(quire::quire ALIAS quire_all)
set_target_properties(quire_all PROPERTIES EXPORT_NAME quire)
target_link_libraries(quire_all INTERFACE quire_textgen quire_runner)

set(installed_folders base io device cache text attn kernels step engine textgen decode model runner)
list(TRANSFORM installed_folders PREPEND quire_ OUTPUT_VARIABLE installed_targets)
add_custom_target(quire_installed DEPENDS quire ${installed_targets})  # what must be built to install
install(TARGETS ${installed_targets} quire_attention quire_all EXPORT quireTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS quire RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
foreach(folder IN LISTS installed_folders)
  install(DIRECTORY src/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quire
    FILES_MATCHING PATTERN "*.h" PATTERN "*-inl.h" EXCLUDE PATTERN "compile_fail" EXCLUDE
    PATTERN "testdata" EXCLUDE PATTERN "corpus" EXCLUDE PATTERN "cuda" EXCLUDE
    PATTERN "test_*.h" EXCLUDE PATTERN "*_cases.h" EXCLUDE PATTERN "*_testing.h" EXCLUDE)
endforeach()

# The model that runs where none is named.
install(DIRECTORY models/quire-grade-school DESTINATION ${CMAKE_INSTALL_DATADIR}/quire/models
  PATTERN training_log.jsonl EXCLUDE)

install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/quire)
install(EXPORT quireTargets NAMESPACE quire:: DESTINATION ${package_dir})
configure_package_config_file(cmake/quireConfig.cmake.in
  ${PROJECT_BINARY_DIR}/quireConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/quireConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/quireConfig.cmake
  ${PROJECT_BINARY_DIR}/quireConfigVersion.cmake cmake/FindQuirePcre2.cmake
  DESTINATION ${package_dir})
