# Finds the 8-bit library of PCRE2, and makes it the target QuirePcre2::pcre2. Debian's package has
# no CMake files. Installed beside quireConfig.cmake, so that a user of the package finds the library
# wherever CMAKE_PREFIX_PATH says, as our own build does.
find_library(QUIRE_PCRE2_LIBRARY pcre2-8)
find_path(QUIRE_PCRE2_INCLUDE_DIR pcre2.h)
mark_as_advanced(QUIRE_PCRE2_LIBRARY QUIRE_PCRE2_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(QuirePcre2
  REQUIRED_VARS QUIRE_PCRE2_LIBRARY QUIRE_PCRE2_INCLUDE_DIR)

if(QuirePcre2_FOUND AND NOT TARGET QuirePcre2::pcre2)
  add_library(QuirePcre2::pcre2 UNKNOWN IMPORTED)
  set_target_properties(QuirePcre2::pcre2 PROPERTIES
    IMPORTED_LOCATION "${QUIRE_PCRE2_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${QUIRE_PCRE2_INCLUDE_DIR}")
endif()
