#include "checkpoint/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "checkpoint/strict_json.h"

namespace bottomless {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr Bytes kAlignment = 8;  // of the first tensor: the widest element's

// What is read, for the beginning of every message about it.
class Reading {
 public:
  explicit Reading(std::string_view where) : where_(where) {}
  std::string header() const { return "read the safetensors header of '" + where_ + "'"; }
  Error wrong(const std::string& what) const {
    return {Code::corrupt,
            header() + ": " + what + "; the file is corrupt: download or write it again"};
  }
  Error wrong(const std::string& tensor, const std::string& what) const {
    return wrong("tensor '" + tensor + "' " + what);
  }

 private:
  std::string where_;
};

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string text;
  for (const uint64_t length : shape) text += (text.empty() ? "" : ", ") + std::to_string(length);
  return "[" + text + "]";
}

// A list of numbers that are whole, not negative and below 2^64; anything else is no answer.
bool read_numbers(const json& from, std::vector<uint64_t>& into) {
  if (!from.is_array()) return false;
  for (const json& number : from) {
    if (!number.is_number_unsigned()) return false;
    into.push_back(number.get<uint64_t>());
  }
  return true;
}

Result<Metadata> read_metadata(const json& from, const Reading& reading) {
  if (!from.is_object()) return reading.wrong("__metadata__ is no object");
  Metadata metadata;
  for (const auto& [name, value] : from.items()) {
    if (!value.is_string()) return reading.wrong("__metadata__ '" + name + "' is no string");
    metadata.emplace(name, value.get<std::string>());
  }
  return metadata;
}

// `data_offset` and `data_bytes` say where the file has room for tensors.
Result<PlacedTensor> read_tensor(const std::string& name, const json& from, Bytes data_offset,
                                 Bytes data_bytes, const Reading& reading) {
  if (!from.is_object()) return reading.wrong(name, "is described by no object");
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!from.contains(field)) return reading.wrong(name, std::string("has no ") + field);
  }
  PlacedTensor tensor;
  tensor.name = name;
  if (!from["dtype"].is_string()) return reading.wrong(name, "has a dtype that is no string");
  const auto& dtype = from["dtype"].get_ref<const std::string&>();
  const std::optional<Dtype> known = dtype_named(dtype);
  if (!known) {
    return Error{Code::unsupported, reading.header() + ": tensor '" + name + "' has the dtype '" +
                                        dtype + "', which this version does not know; convert it"};
  }
  tensor.dtype = *known;
  if (!read_numbers(from["shape"], tensor.shape)) {
    return reading.wrong(name, "has a shape that is no list of whole numbers");
  }
  std::vector<uint64_t> offsets;
  if (!read_numbers(from["data_offsets"], offsets) || offsets.size() != 2) {
    return reading.wrong(name, "has data_offsets that are not two whole numbers");
  }
  const auto [begin, end] = std::pair(offsets[0], offsets[1]);
  const std::string place = "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
  if (begin > end || end > data_bytes) {
    return reading.wrong(name, "lies at " + place + ", and the file has " +
                                   std::to_string(data_bytes) + " bytes of tensors");
  }
  const std::optional<Bytes> bytes = bytes_of(tensor.dtype, tensor.shape);
  if (!bytes || *bytes != end - begin) {
    return reading.wrong(name, "of dtype " + dtype + " and shape " + shape_text(tensor.shape) +
                                   " needs " + (bytes ? std::to_string(*bytes) : "2^64 or more") +
                                   " bytes, and " + place + " has " + std::to_string(end - begin));
  }
  tensor.offset = data_offset + begin;
  tensor.bytes = *bytes;
  return tensor;
}

Result<void> check_places(const TensorLayout& layout, const Reading& reading) {
  Bytes end = layout.data_offset;
  const std::string* before = nullptr;
  for (const PlacedTensor& tensor : layout.tensors) {
    if (tensor.offset != end) {
      const std::string previous = before == nullptr ? "the header" : "tensor '" + *before + "'";
      return reading.wrong(
          tensor.name, (tensor.offset < end ? "overlaps " : "leaves a gap after ") + previous +
                           ": it begins at " + std::to_string(tensor.offset - layout.data_offset) +
                           ", not at " + std::to_string(end - layout.data_offset));
    }
    end += tensor.bytes;
    before = &tensor.name;
  }
  if (end == layout.file_bytes) return {};
  return reading.wrong("its tensors end at byte " + std::to_string(end) + ", the file at " +
                       std::to_string(layout.file_bytes));
}

}  // namespace

Result<Bytes> header_length(const std::array<std::byte, kLengthBytes>& start, Bytes file_bytes,
                            std::string_view where) {
  const Reading reading(where);
  if (file_bytes < kLengthBytes) {
    return reading.wrong("the file has " + std::to_string(file_bytes) +
                         " bytes, too few for the length of a header");
  }
  Bytes length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | std::to_integer<Bytes>(start[i]);
  if (length > kMostHeaderBytes) {
    return reading.wrong("it would have " + format_bytes(length) + ", the limit of the format is " +
                         format_bytes(kMostHeaderBytes));
  }
  if (length > file_bytes - kLengthBytes) {
    return reading.wrong("it would have " + std::to_string(length) + " bytes, the file has " +
                         std::to_string(file_bytes) + " in all");
  }
  return length;
}

Result<TensorLayout> parse_header(std::string_view header, Bytes file_bytes,
                                  std::string_view where) {
  const Reading reading(where);
  TensorLayout layout;
  layout.data_offset = kLengthBytes + header.size();
  layout.file_bytes = file_bytes;
  if (file_bytes < layout.data_offset) {
    return reading.wrong("it is longer than the file, which has " + std::to_string(file_bytes) +
                         " bytes");
  }
  // The format wants the brace first, though JSON allows spaces before it.
  if (!header.starts_with('{')) return reading.wrong("it does not begin with '{'");
  const Result<json> parsed = parse_strict_json(header, reading.header());
  if (!parsed.ok()) return parsed.error();
  layout.tensors.reserve(parsed.value().size());
  for (const auto& [name, value] : parsed.value().items()) {
    if (name == kMetadata) {
      Result<Metadata> metadata = read_metadata(value, reading);
      if (!metadata.ok()) return metadata.error();
      layout.metadata = std::move(metadata).value();
      continue;
    }
    Result<PlacedTensor> tensor =
        read_tensor(name, value, layout.data_offset, file_bytes - layout.data_offset, reading);
    if (!tensor.ok()) return tensor.error();
    layout.tensors.push_back(std::move(tensor).value());
  }
  // An empty tensor shares its offset with the one behind it: the shorter comes first.
  std::sort(layout.tensors.begin(), layout.tensors.end(),
            [](const PlacedTensor& a, const PlacedTensor& b) {
              return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
            });
  const Result<void> placed = check_places(layout, reading);
  if (!placed.ok()) return placed.error();
  return layout;
}

Result<NewHeader> make_header(std::vector<TensorSpec> tensors, Metadata metadata,
                              std::string_view where) {
  const std::string attempted = "lay out the tensors of '" + std::string(where) + "'";
  const auto refuse = [&](const std::string& what) {
    return Error{Code::invalid_argument, attempted + ": " + what};
  };
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return bytes_of(a.dtype) > bytes_of(b.dtype);
  });
  NewHeader made;
  json header = json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  std::unordered_set<std::string_view> names;
  Bytes end = 0;
  for (TensorSpec& spec : tensors) {
    if (spec.name == kMetadata || !names.insert(spec.name).second) {
      return refuse("the name '" + spec.name + "' is taken; give every tensor its own");
    }
    const std::optional<Bytes> bytes = bytes_of(spec.dtype, spec.shape);
    const Bytes begin = end;
    if (!bytes || __builtin_add_overflow(end, *bytes, &end) || end >> 62 != 0) {
      return refuse("with tensor '" + spec.name + "' they have 2^62 bytes or more; use more files");
    }
    header[spec.name] = {
        {"dtype", name_of(spec.dtype)}, {"shape", spec.shape}, {"data_offsets", {begin, end}}};
    PlacedTensor placed;
    placed.TensorSpec::operator=(spec);  // not moved: `names` looks at it
    placed.offset = begin;
    placed.bytes = *bytes;
    made.layout.tensors.push_back(std::move(placed));
  }
  Result<std::string> text = write_json(header, -1, attempted);
  if (!text.ok()) return text.error();
  std::string& written = text.value();
  written.resize((written.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  if (written.size() > kMostHeaderBytes) {
    return refuse("the header would have " + format_bytes(written.size()) +
                  ", the limit of the format is " + format_bytes(kMostHeaderBytes) +
                  "; use more files");
  }
  for (size_t i = 0; i < kLengthBytes; ++i) {
    made.start.push_back(static_cast<char>(written.size() >> 8 * i & 0xFF));
  }
  made.start += written;
  made.layout.metadata = std::move(metadata);
  made.layout.data_offset = made.start.size();
  made.layout.file_bytes = made.layout.data_offset + end;
  for (PlacedTensor& tensor : made.layout.tensors) tensor.offset += made.layout.data_offset;
  return made;
}

}  // namespace bottomless
