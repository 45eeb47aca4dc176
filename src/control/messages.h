// The payloads of the control protocol as structs, with their encoding. Pure.
#pragma once

#include "convoy/base/error.h"
#include "convoy/control/failure_report.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

/// What a connection is for.
enum class ClientRole : std::uint32_t {
  kRank,      ///< The session of a rank: one at a time for each rank.
  kReporter,  ///< Brings one failure report of a rank whose session may have ended.
};

/// First message of a client. The version comes first, so that every version can read it.
struct Hello {
  std::uint32_t version = 0;
  ClientRole role = ClientRole::kRank;
  std::int64_t rank = 0;
  std::int64_t world_size = 0;
  std::string run_id;
  std::int64_t generation = 0;

  std::string encode() const;
  /// For another version only the version is filled. Error: kProtocol.
  static Hello decode(std::string_view payload);
};

std::string encode_error(const Error& error);
Error decode_error(std::string_view payload);

/// kReport. With a request number other than 0 the reporter waits to hear whether it shall print.
struct ReportMessage {
  FailureReport report;  ///< The reporter's rank is not sent: it is that of the connection.

  std::string encode() const;
  static ReportMessage decode(std::string_view payload);
};

/// kMembership.
struct MembershipMessage {
  std::int64_t rank = 0;
  bool has_left = false;

  std::string encode() const;
  static MembershipMessage decode(std::string_view payload);
};

/// Why a blocking request was ended before it was fulfilled.
struct Unfulfilled {
  std::uint32_t key_count = 0;    ///< Keys that are missing.
  std::vector<std::string> keys;  ///< The first of them.
  std::vector<std::int64_t> not_joined;
  std::vector<std::int64_t> left;
  std::vector<std::int64_t> not_finished;  ///< Of a finish request only.
};

enum class ReplyStatus : std::uint32_t { kOk, kNothing, kError, kUnfulfilled };

/// kReply.
struct Reply {
  ReplyStatus status = ReplyStatus::kOk;
  std::string value;           ///< Of kOk.
  std::optional<Error> error;  ///< Of kError.
  Unfulfilled unfulfilled;     ///< Of kUnfulfilled.

  static Reply ok(std::string value = {});
  static Reply nothing();
  static Reply failed(Error error);
  static Reply not_fulfilled(Unfulfilled what);
  std::string encode() const;
  static Reply decode(std::string_view payload);
};

}  // namespace convoy
