# Writes the page's files as arrays of C++: cmake -D OUT=FILE -D FILES=NAME=PATH,... -P this.
string(REPLACE "," ";" files "${FILES}")
set(text "// Generated from server/http/page.\n#include <cstddef>\n\nnamespace fox::page {\n\n")
foreach(file ${files})
  string(REGEX MATCH "^([A-Za-z]+)=(.+)$" matched "${file}")
  set(name ${CMAKE_MATCH_1})
  file(READ "${CMAKE_MATCH_2}" bytes HEX)
  string(LENGTH "${bytes}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND text "extern const unsigned char k${name}[];\nextern const size_t k${name}Size;\n"
                     "const unsigned char k${name}[] = {${bytes}};\n"
                     "const size_t k${name}Size = ${size};\n\n")
endforeach()
file(WRITE "${OUT}" "${text}}  // namespace fox::page\n")
