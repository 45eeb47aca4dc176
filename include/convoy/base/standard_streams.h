// Keeps the numbers of stdin, stdout and stderr out of the hands of other files.
#pragma once

namespace convoy {

/// Opens /dev/null in the place of each standard stream with which the process was started closed.
/// Otherwise the next file it opens gets the number, and what is printed goes into that file. To be
/// called first in main().
void hold_standard_streams() noexcept;

}  // namespace convoy
