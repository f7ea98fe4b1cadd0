# quire_install_headers(SOURCE DESTINATION HEADERS...)
# For install(CODE): puts the headers, and those of the project that they include, from SOURCE to
# DESTINATION/quire. They include each other as "quire/folder/file.h" there, so that a user's include
# path has one folder of ours, and none called base or text.
cmake_minimum_required(VERSION 3.25)

function(quire_install_headers source destination)
  set(queue ${ARGN})
  set(done "")
  while(queue)
    list(POP_FRONT queue header)
    list(APPEND done ${header})
    file(READ ${source}/${header} text)
    string(REGEX MATCHALL "#include \"[^\"]+\"" includes "${text}")
    foreach(include IN LISTS includes)
      string(REGEX REPLACE "#include \"(.*)\"" "\\1" included "${include}")
      if(NOT included IN_LIST done AND NOT included IN_LIST queue)
        list(APPEND queue ${included})
      endif()
    endforeach()
    string(REPLACE "#include \"" "#include \"quire/" text "${text}")
    message(STATUS "Installing: ${destination}/quire/${header}")
    file(WRITE $ENV{DESTDIR}${destination}/quire/${header} "${text}")
    list(APPEND CMAKE_INSTALL_MANIFEST_FILES ${destination}/quire/${header})
  endwhile()
  # file(WRITE) obeys the umask; what is installed is for everyone.
  file(CHMOD_RECURSE $ENV{DESTDIR}${destination}/quire
    FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ
    DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
                          WORLD_READ WORLD_EXECUTE)
  set(CMAKE_INSTALL_MANIFEST_FILES ${CMAKE_INSTALL_MANIFEST_FILES} PARENT_SCOPE)
endfunction()
