// What the C library does with large blocks that a program has freed.
#pragma once

namespace convoy {

/// Lets malloc keep freed blocks of any size for the next request, instead of giving them back to
/// the system, and asks for huge pages under the heap (as far as half of the machine's memory):
/// training frees and takes the same sizes in every step, each page that comes back from the system
/// costs a fault and is zeroed first, and small pages cost look-ups in every pass over a weight.
/// The price: memory that was needed once stays with the process, and its address space looks
/// large. For the whole process, and glibc only; elsewhere nothing happens. Huge pages are left
/// out where address space is limited (ulimit -v, -d, vm.overcommit_memory = 2), and the kernel may
/// have them switched off. guarded_main calls it unless CONVOY_ALLOCATOR is `system`. Thread rule:
/// call it before there are threads that allocate.
void keep_freed_memory() noexcept;

}  // namespace convoy
