#include <bottomless/torch.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tokenizers/tokenizer.h"
#include "train/commands/commands.h"
#include "train/commands/generation.h"
#include "train/files/model_directory.h"
#include "train/files/number_checks.h"
#include "train/loop/resident_peaks.h"
#include "train/models/lora.h"
#include "train/setup/granted_options.h"
#include "train/setup/run_directory.h"
#include "train/setup/token_encoder.h"

namespace bottomless::train {
namespace {

struct GenerateOptions {
  std::filesystem::path model;
  std::filesystem::path adapter;
  std::string prompt;
  bool chat = false;
  GrantedOptions granted;
  int64_t tokens = 100;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  uint64_t seed = 0;
  std::string precision;
  bool json = false;
};

void add_options(CLI::App& app, GenerateOptions& options) {
  app.add_option("--model", options.model, "A Hugging Face directory, or that of a run")
      ->required();
  app.add_option("--prompt", options.prompt, "What the text begins with")->required();
  app.add_option("--adapter", options.adapter, "Directory of adapters that belong to the model");
  app.add_flag("--chat", options.chat,
               "The prompt is what a user says: written as the model's chat template wants it");
  add_granted_options(app, options.granted);
  app.add_option("--tokens", options.tokens, "At most so many new ones")
      ->check(number_above(0))
      ->capture_default_str();
  app.add_option("--temperature", options.temperature,
                 "0: always the likeliest (default: as the model's generation_config.json says)")
      ->check(number_from(0));
  app.add_option("--top-k", options.top_k, "Only the k likeliest")->check(number_from(0));
  app.add_option("--top-p", options.top_p, "Only the likeliest that have this probability")
      ->check(number_between(0.0, 1.0));
  app.add_option("--seed", options.seed, "The same seed, the same text")->capture_default_str();
  app.add_option("--precision", options.precision, "Instead of that of the files")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_flag("--json", options.json, "Print the counters as a last line of JSON");
  app.footer("Example: bottomless generate --model run --prompt 'def main' --memory 1GiB");
}

Result<SamplingOptions> sampling_of(const GenerateOptions& options,
                                    const std::filesystem::path& directory,
                                    const text::Tokenizer& tokenizer) {
  Result<SamplingOptions> read = read_generation_config(directory);
  if (!read.ok()) return read;
  SamplingOptions sampling = std::move(read).value();
  if (options.temperature) sampling.temperature = *options.temperature;
  if (options.top_k) sampling.top_k = *options.top_k;
  if (options.top_p) sampling.top_p = *options.top_p;
  sampling.seed = options.seed;
  if (sampling.end.empty() && tokenizer.eos) sampling.end = {*tokenizer.eos};
  return sampling;
}

Result<int> run(const GenerateOptions& options) {
  const std::filesystem::path directory = model_in(options.model);
  Result<std::unique_ptr<text::Tokenizer>> tokenizer = text::open_tokenizer(directory);
  if (!tokenizer.ok()) return tokenizer.error();
  Result<std::vector<int64_t>> prompt = options.chat
                                            ? encode_question(*tokenizer.value(), options.prompt)
                                            : encode_prompt(*tokenizer.value(), options.prompt);
  if (!prompt.ok()) return prompt.error();
  Result<SamplingOptions> sampling = sampling_of(options, directory, *tokenizer.value());
  if (!sampling.ok()) return sampling.error();

  ResidentPeaks resident;
  resident.limit_begins();
  std::optional<Runtime> runtime;
  if (const auto wanted = runtime_options(options.granted, std::filesystem::temp_directory_path()))
    runtime.emplace(*wanted);
  LoadOptions load;
  if (!options.precision.empty()) load.dtype = dtype_of(options.precision);
  Result<std::shared_ptr<Model>> model = load_model(directory, load);
  if (!model.ok()) return model.error();
  resident.model_is_loaded();
  std::unique_ptr<Adapters> adapters;
  if (!options.adapter.empty()) {
    Result<std::unique_ptr<Adapters>> read = Adapters::read(*model.value(), options.adapter);
    if (!read.ok()) return read.error();
    adapters = std::move(read).value();
  }

  Sampler sampler(sampling.value());
  TextStream stream(*tokenizer.value(), [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  });
  int64_t made = 0;
  const auto start = std::chrono::steady_clock::now();
  if (!options.chat) std::printf("%s", options.prompt.c_str());
  Result<void> streamed;
  const Ended ended = generate(*model.value(), std::move(prompt).value(), options.tokens, sampler,
                               [&](int64_t token) {
                                 streamed = stream.add(static_cast<int32_t>(token));
                                 ++made;
                                 if (runtime) runtime->step();
                                 return streamed.ok();
                               });
  if (streamed.ok()) streamed = stream.finish();
  std::printf("\n");
  if (!streamed.ok()) return streamed.error();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (ended == Ended::by_context) {
    std::fprintf(stderr, "bottomless: the model takes at most %ld tokens\n",
                 static_cast<long>(model.value()->config().positions));
  }
  if (options.json) {
    nlohmann::json outcome = {
        {"tokens", made}, {"seconds", seconds}, {"resident", resident.to_json()}};
    if (runtime) outcome["stats"] = nlohmann::json::parse(to_json(runtime->stats()));
    std::printf("%s\n", outcome.dump().c_str());
  }
  return kDone;
}

}  // namespace

std::function<int()> add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  add_options(app, *options);
  return [options] {
    const Result<int> done = run(*options);
    return done.ok() ? done.value() : tell(done.error());
  };
}

}  // namespace bottomless::train
