# Finds libedit, and makes it the target QuireEdit::edit. Debian's package has no CMake files.
find_library(QUIRE_EDIT_LIBRARY edit)
find_path(QUIRE_EDIT_INCLUDE_DIR histedit.h)
mark_as_advanced(QUIRE_EDIT_LIBRARY QUIRE_EDIT_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(QuireEdit
  REQUIRED_VARS QUIRE_EDIT_LIBRARY QUIRE_EDIT_INCLUDE_DIR)

if(QuireEdit_FOUND AND NOT TARGET QuireEdit::edit)
  add_library(QuireEdit::edit UNKNOWN IMPORTED)
  set_target_properties(QuireEdit::edit PROPERTIES
    IMPORTED_LOCATION "${QUIRE_EDIT_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${QUIRE_EDIT_INCLUDE_DIR}")
endif()
