// The binding of <bottomless/torch.h>: names and types as there. Errors arrive as torch's own
// exceptions.
#include <bottomless/torch.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>

#include "torch/disk_error.h"

namespace py = pybind11;

namespace {

bottomless::Bytes bytes_of(const std::string& text) {
  bottomless::Result<bottomless::Bytes> bytes = bottomless::parse_bytes(text);
  if (!bytes.ok()) throw py::value_error("bottomless: " + bytes.error().message);
  return bytes.value();
}

// As bottomless.DiskError, which is an OSError, and a RuntimeError as all that operators throw.
void throw_disk_error(int number, const std::string& message) {
  if (!Py_IsInitialized()) return;
  const py::gil_scoped_acquire gil;
  const py::object type = py::module_::import("bottomless").attr("DiskError");
  PyErr_SetObject(type.ptr(), type(number, message).ptr());
  throw py::error_already_set();
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  bottomless::set_disk_error_thrower(&throw_disk_error);
  module.def("parse_bytes", &bytes_of, py::arg("text"));
  module.def("automatic_memory", &bottomless::automatic_memory);
  module.def("is_limited", &bottomless::is_limited);
  module.def("format_bytes", &bottomless::format_bytes, py::arg("bytes"));

  py::class_<bottomless::Runtime>(module, "Runtime")
      .def(py::init([](bottomless::Bytes memory, const std::vector<std::string>& disk,
                       std::optional<bottomless::Bytes> disk_limit, bool deferred_updates,
                       bool recorded, bool checksums) {
             bottomless::Options options{.memory = memory,
                                         .disk = {},
                                         .disk_limit = disk_limit,
                                         .deferred_updates = deferred_updates,
                                         .recorded = recorded,
                                         .checksums = checksums};
             for (const std::string& directory : disk) options.disk.emplace_back(directory);
             return std::make_unique<bottomless::Runtime>(options);
           }),
           py::arg("memory"), py::arg("disk"), py::arg("disk_limit"), py::arg("deferred_updates"),
           py::arg("recorded"), py::arg("checksums"))
      .def("step", py::overload_cast<>(&bottomless::Runtime::step))
      .def(
          "label",
          [](bottomless::Runtime& self, uintptr_t address, const std::string& kind) {
            self.label(reinterpret_cast<const void*>(address), kind);
          },
          py::arg("address"), py::arg("kind"))
      .def("report",
           [](const bottomless::Runtime& self, const std::string& file) { self.report(file); })
      .def("trace",
           [](const bottomless::Runtime& self, const std::string& file) { self.trace(file); })
      .def("stats_json",
           [](const bottomless::Runtime& self) { return bottomless::to_json(self.stats()); });
}
