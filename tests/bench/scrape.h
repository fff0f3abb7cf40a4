// Scrape: what a server's metrics port says.
#pragma once

#include <map>
#include <string>

namespace fox {

// Values of all samples by name and labels, as in `fox_steps_total` or `name_sum{phase="decode"}`;
// none without an answer.
std::map<std::string, double> Scrape(int port);

}  // namespace fox
