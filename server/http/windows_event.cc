// WindowsEvent: see windows_event.h.
#include "server/http/windows_event.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/http/http_error.h"

namespace fox {

std::string WindowsEvent(const v1::Windows& windows, size_t choice) {
  const v1::AcpStats& acp = windows.acp();
  return absl::StrCat(
      "data: {\"object\":\"fox.windows\",\"index\":", choice, ",\"tokens\":", windows.tokens(),
      ",\"layers\":", windows.layers(), ",\"kv_heads\":", windows.kv_heads(),
      ",\"page_size\":", windows.page_size(), ",\"page_bytes\":", windows.page_bytes(),
      ",\"first_page\":[", absl::StrJoin(windows.first_page(), ","),
      "],\"acp\":{\"blocks_total\":", acp.blocks_total(),
      ",\"blocks_pruned\":", acp.blocks_pruned(), ",\"pages_allocated\":", acp.pages_allocated(),
      ",\"pages_evicted\":", acp.pages_evicted(), ",\"peak_pages\":", acp.peak_pages(),
      ",\"max_log_evicted_mass\":", JsonNumber(acp.max_log_evicted_mass()),
      ",\"log_tolerance\":", JsonNumber(acp.log_tolerance()), "}}\n\n");
}

}  // namespace fox
