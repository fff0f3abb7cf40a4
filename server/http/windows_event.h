// The server-sent event for what each head of a choice keeps, beside OpenAI's API: for the page.
#pragma once

#include <cstddef>
#include <string>

#include "fox/v1/inference.pb.h"

namespace fox {

// {"object":"fox.windows","index":CHOICE, then the fields of v1::Windows}, -infinity as null.
std::string WindowsEvent(const v1::Windows& windows, size_t choice);

}  // namespace fox
