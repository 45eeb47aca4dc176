// What an exception says, fit for one line of a log.
#pragma once

#include <exception>
#include <string>

namespace convoy {

/// The text of any exception in one line, without the stack trace that libtorch puts behind its
/// own.
std::string exception_text(const std::exception& error);

}  // namespace convoy
