// Columns and sums.
#include "unit_table.h"

#include <cstdio>

namespace convoy::fsdp {
namespace {

std::string table_row(const UnitSummary& unit) {
  char text[256];
  std::snprintf(
      text, sizeof(text), "  %-32s %6lld %13lld %10s %10s %8.2f%%  %s%s\n", unit.name.c_str(),
      static_cast<long long>(unit.parameters), static_cast<long long>(unit.numel),
      in_mib(unit.full_bytes).c_str(), in_mib(unit.shard_bytes).c_str(),
      unit.numel > 0
          ? 100.0 * static_cast<double>(unit.padding_numel) / static_cast<double>(unit.numel)
          : 0.0,
      unit.cut_at_rows ? "rows" : "elements", unit.trainable ? "" : ", frozen");
  return text;
}

}  // namespace

std::string in_mib(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f", static_cast<double>(bytes) / (1024.0 * 1024.0));
  return text;
}

std::string unit_table(const std::string& title, const std::vector<UnitSummary>& units) {
  UnitSummary total{.name = "total"};
  std::string rows;
  for (const UnitSummary& unit : units) {
    total.parameters += unit.parameters;
    total.numel += unit.numel;
    total.padding_numel += unit.padding_numel;
    total.shard_bytes += unit.shard_bytes;
    total.full_bytes += unit.full_bytes;
    total.cut_at_rows = total.cut_at_rows && unit.cut_at_rows;
    rows += table_row(unit);
  }
  char head[160];
  std::snprintf(head, sizeof(head), "  %-32s %6s %13s %10s %10s %9s  %s\n", "unit", "params",
                "elements", "full MiB", "rank MiB", "padding", "cut at");
  return title + "\n" + head + rows + table_row(total);
}

}  // namespace convoy::fsdp
