# `cmake --install` gives the program quire, headers, the libraries and a CMake package:
# find_package(quire), and link quire::quire, or quire::attention for attention alone.
include(CMakePackageConfigHelpers)

add_library(quire_attention INTERFACE)
add_library(quire::attention ALIAS quire_attention)
set_target_properties(quire_attention PROPERTIES EXPORT_NAME attention)
target_link_libraries(quire_attention INTERFACE quire_kernels quire_interop quire_cache)

add_library(quire_all INTERFACE)
add_library(quire::quire ALIAS quire_all)
set_target_properties(quire_all PROPERTIES EXPORT_NAME quire)
target_link_libraries(quire_all INTERFACE quire_local)

set(installed_folders base io device cache text attn interop kernels step engine textgen decode
  model runner local)
set(installed_targets "")
foreach(folder IN LISTS installed_folders)
  list(APPEND installed_targets quire_${folder})
  if(TARGET quire_${folder}_cuda)
    list(APPEND installed_targets quire_${folder}_cuda)
  endif()
endforeach()
add_custom_target(quire_installed DEPENDS quire ${installed_targets})  # what must be built to install
install(TARGETS ${installed_targets} quire_attention quire_all EXPORT quireTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS quire RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET quire_mpi)
  add_dependencies(quire_installed quire_mpi)
  install(TARGETS quire_mpi LIBRARY DESTINATION lib/quire)  # where bin/quire looks for it
endif()

# What users include, as "quire/interop/export.h"; the headers that these include are installed with them.
set(public_headers
  attn/kv_store.h attn/plan_storage.h interop/export.h interop/prefill_plan.h
  cache/page_list.h cache/page_pool.h cache/prefix_tree.h
  decode/acceptance.h decode/draft_tree.h
  device/buffer.h device/thread_pool.h
  kernels/cpu/mha_prefill.h kernels/cpu/mla_attention.h kernels/cpu/store.h
  local/local_model.h)
install(CODE "
  include(\"${PROJECT_SOURCE_DIR}/cmake/InstallHeaders.cmake\")
  quire_install_headers(\"${PROJECT_SOURCE_DIR}/src\"
    \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\" ${public_headers})"
  COMPONENT headers)

# The same names in the build tree, for the examples and for add_subdirectory.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include)
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/include/quire SYMBOLIC)
foreach(target quire_attention quire_all)
  target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>)
endforeach()

# The model that runs where none is named, and an EAGLE-3 head that drafts for it.
install(DIRECTORY models/quire-grade-school models/quire-grade-school-eagle3
  DESTINATION ${CMAKE_INSTALL_DATADIR}/quire/models
  PATTERN *_log.jsonl EXCLUDE)

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
