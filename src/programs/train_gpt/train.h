// The whole run: sets everything up, trains, validates, writes a sample.
#pragma once

#include "convoy/profile/counting_allocator.h"
#include "convoy/rendezvous/job.h"
#include "programs/train_gpt/event_log.h"
#include "programs/train_gpt/options.h"

#include <memory>

namespace convoy::train_gpt {

/// Trains as one rank of `job`; rank 0 writes to `log` and to standard output. Collective.
void train(const Job& job, const Options& options, profile::AllocationCounter& allocations,
           EventLog& log);

}  // namespace convoy::train_gpt
