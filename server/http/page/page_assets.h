// The page at / and what it needs, as compiled in: no file is read while serving, and nothing is
// asked of another host.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fox {

struct PageAsset {
  const char* path;  // of the URL
  const char* content_type;
  std::string_view body;
};

const std::vector<PageAsset>& PageAssets();

// What each of them is sent with: a browser runs and loads nothing but these files, asks no other
// host, and shows them in no frame.
const std::vector<std::pair<std::string, std::string>>& PageHeaders();

}  // namespace fox
