// What ranks tell each other when they meet, and how it is compared.
#include "comm/host/rendezvous.h"
#include "control/wait_text.h"
#include "convoy/base/check.h"
#include "convoy/base/hash.h"

#include <cstring>

namespace convoy {

ReplyMessage make_failure(const Error& error) {
  ReplyMessage message;
  message.type = ReplyType::kFailure;
  message.error_kind = static_cast<std::int32_t>(error.kind());
  message.error_rank = error.rank();
  std::strncpy(message.text, error.what(), sizeof message.text - 1);
  return message;
}

Error to_error(const ReplyMessage& message) {
  return Error(static_cast<ErrorKind>(message.error_kind),
               std::string(message.text, ::strnlen(message.text, sizeof message.text)),
               message.error_rank);
}

HelloMessage make_hello(const Job& job, const CommunicatorOptions& options) {
  HelloMessage hello;
  hello.rank = job.rank();
  hello.world_size = job.world_size();
  hello.generation = job.generation();
  hello.run_hash = hash64(job.run_id());
  hello.name_hash = hash64(options.name);
  hello.timeout_ns = options.timeout.count();
  hello.warn_after_ns = options.warn_after.count();
  hello.memory_limit = options.shared_memory_limit.value_or(-1);
  return hello;
}

std::string find_difference(const HelloMessage& theirs, const HelloMessage& ours) {
  const auto differ = [](const char* what, auto a, auto b) {
    return concat(what, " ", a, " and not ", b);
  };
  if (theirs.version != ours.version) return differ("version", theirs.version, ours.version);
  if (theirs.run_hash != ours.run_hash) return "another run id";
  if (theirs.generation != ours.generation) {
    return differ("generation", theirs.generation, ours.generation);
  }
  if (theirs.world_size != ours.world_size) {
    return differ("world size", theirs.world_size, ours.world_size);
  }
  if (theirs.name_hash != ours.name_hash) return "another communicator name";
  if (theirs.timeout_ns != ours.timeout_ns) {
    return differ("timeout (ns)", theirs.timeout_ns, ours.timeout_ns);
  }
  if (theirs.warn_after_ns != ours.warn_after_ns) {
    return differ("warn_after (ns)", theirs.warn_after_ns, ours.warn_after_ns);
  }
  if (theirs.memory_limit != ours.memory_limit) {
    return differ("shared_memory_limit", theirs.memory_limit, ours.memory_limit);
  }
  if (theirs.rank < 0 || theirs.rank >= ours.world_size) {
    return concat("rank ", theirs.rank, " in a world of ", ours.world_size);
  }
  return {};
}

Error explain_missing(const CommunicatorOptions& options, const std::string& missing) {
  return Error(ErrorKind::kTimeout,
               concat("communicator '", options.name, "': timed out after ",
                      name_wait(options.timeout), " while the group was made: ", missing,
                      " did not come; every rank of the job must make it, with the same name"));
}

namespace {

std::string letter_key(const Job& job, const CommunicatorOptions& options, int rank) {
  return concat("comm/", job.generation(), "/", options.name, "/letter/", rank);
}

}  // namespace

void leave_letter(const Job& job, const CommunicatorOptions& options, int rank,
                  const ReplyMessage& failure) {
  job.store()->set(letter_key(job, options, rank),
                   {reinterpret_cast<const char*>(&failure), sizeof failure});
}

std::optional<ReplyMessage> take_letter(const Job& job, const CommunicatorOptions& options) {
  const auto key = letter_key(job, options, job.rank());
  const auto bytes = job.store()->try_get(key);
  ReplyMessage failure;
  if (!bytes || bytes->size() != sizeof failure) return std::nullopt;
  job.store()->remove(key);
  std::memcpy(&failure, bytes->data(), sizeof failure);
  return failure;
}

std::string rendezvous_key(const Job& job, const CommunicatorOptions& options) {
  return concat("comm/", job.generation(), "/", options.name, "/address");
}

}  // namespace convoy
