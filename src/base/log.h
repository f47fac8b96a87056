// Where the core says things that are not errors. It never prints by itself: its owner hands in
// a sink.
// Thread-safety: a sink may be called from any of the core's threads, one call at a time per
// object that holds it.
#pragma once
#include <functional>
#include <string_view>

namespace bottomless {

enum class LogLevel { info, warning };
using LogSink = std::function<void(LogLevel, std::string_view)>;

}  // namespace bottomless
