# quire_embed_page(TARGET)   writes serve/page_bytes.h, with the files of this folder as
#   std::string_view constants (page_bytes::chat_js), for TARGET to include; again when one changes.
#
# As a script (cmake -P) it is the step that writes: OUTPUT, FILES separated by commas.
if(CMAKE_SCRIPT_MODE_FILE)
  set(text "// Written by serve/page/embed.cmake.\n#pragma once\n\n#include <string_view>\n\n")
  string(APPEND text "namespace quire::page_bytes {\n")
  string(REPLACE "," ";" FILES "${FILES}")
  foreach(file IN LISTS FILES)
    cmake_path(GET file FILENAME name)
    string(MAKE_C_IDENTIFIER "${name}" name)
    file(READ "${file}" bytes)
    if(bytes MATCHES "\\)quire\"")
      message(FATAL_ERROR "${file}: has the end of its C++ literal in it")
    endif()
    string(APPEND text "inline constexpr std::string_view ${name} = R\"quire(${bytes})quire\";\n")
  endforeach()
  file(WRITE "${OUTPUT}" "${text}}  // namespace quire::page_bytes\n")
  return()
endif()

set(QUIRE_PAGE_FOLDER ${CMAKE_CURRENT_LIST_DIR})
function(quire_embed_page target)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/generated)
  set(output ${folder}/serve/page_bytes.h)
  set(script ${QUIRE_PAGE_FOLDER}/embed.cmake)
  set(files index.html icon.svg chat.css live.css style.css
    api.js app.js chat.js conversations.js dom.js history.js inline.js live.js markdown.js math.js
    message.js probabilities.js settings.js stream.js theme.js)
  list(TRANSFORM files PREPEND ${QUIRE_PAGE_FOLDER}/)
  list(JOIN files "," joined)
  add_custom_command(OUTPUT ${output} DEPENDS ${files} ${script} VERBATIM
    COMMAND ${CMAKE_COMMAND} "-DFILES=${joined}" -DOUTPUT=${output} -P ${script}
    COMMENT "Embedding the page")
  target_sources(${target} PRIVATE ${output})
  target_include_directories(${target} PRIVATE ${folder})
endfunction()
