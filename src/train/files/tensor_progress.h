// Thread-safety: that of the function; it is called by the thread that does the work.
#pragma once
#include <functional>
#include <string>

namespace bottomless::train {

// Of work that goes tensor by tensor: called with the name of each as its turn comes. May be empty.
using Progress = std::function<void(const std::string& tensor)>;

}  // namespace bottomless::train
