// Bytes from a file in an error message: one printable line of bounded length, so that a hostile
// tensor name can neither forge log lines nor flood the log.
#pragma once

#include <string>

namespace fox {

// `text` with everything but printable ASCII replaced by '?', cut to about 120 characters.
std::string Printable(const std::string& text);

// Printable, between double quotes.
std::string Quoted(const std::string& text);

}  // namespace fox
