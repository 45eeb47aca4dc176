// What the C library does with large blocks that a program has freed.
#pragma once

namespace convoy {

/// Lets malloc keep freed blocks of any size for the next request, instead of giving them back to
/// the system: training frees and takes the same sizes in every step, and each page that comes back
/// from the system costs a fault and is zeroed first. Worth 1 to 6 % of a step of the GPT models
/// here. The price: memory that was needed once stays with the process. For the whole process, and
/// glibc only; elsewhere nothing happens. guarded_main calls it unless CONVOY_ALLOCATOR is
/// `system`. Thread rule: call it before there are threads that allocate.
void keep_freed_memory() noexcept;

}  // namespace convoy
