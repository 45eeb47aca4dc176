// Fingerprints of operations.
#include "comm/host/op_header.h"

#include "convoy/base/check.h"
#include "convoy/base/hash.h"

#include <cstring>

namespace convoy {
namespace {

OpKind kind_of(const OpHeader& header) { return static_cast<OpKind>(header.kind); }

}  // namespace

OpHeader make_header(const OpContext& context) {
  OpHeader header;
  header.sequence = context.sequence;
  header.kind = static_cast<std::uint8_t>(context.kind);
  header.tag_hash = hash64(context.tag);
  std::strncpy(header.tag.data(), context.tag.c_str(), kTagBytes - 1);
  header.entered_ns = trace::now_ns();
  return header;
}

bool is_same_operation(const OpHeader& a, const OpHeader& b) noexcept {
  return a.sequence == b.sequence && a.kind == b.kind && a.reduce == b.reduce &&
         a.dtype == b.dtype && a.shared == b.shared && a.root == b.root && a.count == b.count &&
         a.counts_hash == b.counts_hash && a.tag_hash == b.tag_hash;
}

std::string describe(const OpHeader& header) {
  const std::string tag(header.tag.data(), ::strnlen(header.tag.data(), kTagBytes));
  std::string text = concat(to_string(kind_of(header)), " #", header.sequence);
  if (!tag.empty()) text += concat(" '", tag, "'");
  const auto dtype = static_cast<at::ScalarType>(header.dtype);
  const auto elements = concat(c10::toString(dtype), ", ", header.count, " elements");
  switch (kind_of(header)) {
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
      return text +
             concat(" (", to_string(static_cast<ReduceOp>(header.reduce)), ", ", elements, ")");
    case OpKind::kAllGather: return text + concat(" (", elements, ")");
    case OpKind::kBroadcast: return text + concat(" (root ", header.root, ", ", elements, ")");
    case OpKind::kAllocate:
      return text + concat(" (", header.shared != 0 ? "shared, " : "", elements, ")");
    case OpKind::kBarrier: return text;
  }
  return text;
}

}  // namespace convoy
