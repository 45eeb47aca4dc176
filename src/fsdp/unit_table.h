// Units as a table for people.
#pragma once

#include "convoy/fsdp/unit_summary.h"

#include <cstdint>
#include <string>
#include <vector>

namespace convoy::fsdp {

/// A line for each unit and one for all; `title` goes above.
std::string unit_table(const std::string& title, const std::vector<UnitSummary>& units);

std::string in_mib(std::int64_t bytes);

}  // namespace convoy::fsdp
