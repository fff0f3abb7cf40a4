// The page at / and its files, compiled in: no file is read while serving, and the page asks no
// other host.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fox {

struct PageAsset {
  const char* path;  // in the URL
  const char* content_type;
  std::string_view body;
};

const std::vector<PageAsset>& PageAssets();

// The headers of each file: a browser runs and loads nothing but these files, asks no other host,
// and shows them in no frame.
const std::vector<std::pair<std::string, std::string>>& PageHeaders();

}  // namespace fox
