#include "train/setup/train_options.h"

#include <map>

#include "train/files/number_checks.h"
#include "train/models/presets.h"

namespace bottomless::train {
namespace {

std::string listed(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

void add_what(CLI::App& app, TrainOptions& options) {
  app.add_option(
         "--model", options.model,
         "A Hugging Face directory (GPT-2, Llama, Qwen2, Mistral, Mixtral), or from scratch: " +
             listed(preset_names()))
      ->required();
  app.add_option("--data", options.data,
                 "Text files, .jsonl files of texts, of prompts and responses or of messages, or "
                 "directories of such files")
      ->required();
  app.add_option("--out", options.out, "Directory for the trained model and all about the run")
      ->required();
  app.add_flag("--resume", options.resume, "Go on with the run in --out where it was saved last");
  app.add_option(
      "--tokenizer", options.tokenizer,
      "For a preset: a directory with a tokenizer (default: one is trained on the data)");
  app.add_option("--vocabulary", options.vocabulary, "Tokens of a tokenizer that is trained")
      ->check(number_between(300, 1'000'000))
      ->capture_default_str();
}

void add_amount(CLI::App& app, TrainOptions& options) {
  app.add_option("--epochs", options.epochs, "How often to go through the data")
      ->check(number_above(0))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Optimizer steps, instead of epochs")
      ->check(number_above(0));
  app.add_option("--length", options.length,
                 "Tokens of a row (default: 1024, or the most that the model takes)")
      ->check(number_between(2, 1 << 24));
  app.add_option("--batch", options.batch, "Rows of a micro-batch")
      ->check(number_above(0))
      ->capture_default_str();
  app.add_option("--accumulate", options.accumulate,
                 "Micro-batches of a step, on each rank; they pass each layer together, so more of "
                 "them read "
                 "no more")
      ->check(number_above(0))
      ->capture_default_str();
  app.add_option(
         "--stage", options.stage,
         "On several ranks (torchrun, mpirun): 1 shards the optimizer's states, 2 gradients, "
         "too, 3 parameters, too")
      ->check(number_between(1, 3))
      ->capture_default_str();
  app.add_option("--deadline", options.deadline_seconds,
                 "Seconds that a rank waits for another one that gives no sign of going on")
      ->check(number_between(1, 1e9))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of order, chance and new parameters")
      ->capture_default_str();
}

void add_change(CLI::App& app, TrainOptions& options) {
  app.add_option("--optimizer", options.update.optimizer)
      ->check(CLI::IsMember(optimizer_names()))
      ->capture_default_str();
  app.add_option("--lr", options.rate, "The highest learning rate")
      ->check(number_from(0))
      ->capture_default_str();
  app.add_option("--schedule", options.schedule, "How the rate falls after the warm-up")
      ->check(CLI::IsMember({"cosine", "linear", "constant"}))
      ->capture_default_str();
  app.add_option("--warm-up", options.warm_up, "Steps in which it rises (default: 3 % of all)")
      ->check(number_from(0));
  app.add_option("--final-lr", options.final_share, "Of the highest, in the last step")
      ->check(number_between(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--weight-decay", options.update.weight_decay, "Of matrices")
      ->check(number_from(0))
      ->capture_default_str();
  app.add_option("--beta1", options.update.beta1)
      ->check(number_between(0.0, 0.99999))
      ->capture_default_str();
  app.add_option("--beta2", options.update.beta2)
      ->check(number_between(0.0, 0.9999999))
      ->capture_default_str();
  app.add_option("--momentum", options.update.momentum, "Of sgd")
      ->check(number_between(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--clip", options.update.max_norm,
                 "The greatest norm of all gradients; 0: never, and layers are updated at once")
      ->check(number_from(0))
      ->capture_default_str();
  static const std::map<std::string, optim::States> kStates = {
      {"float32", optim::States::float32},
      {"bfloat16", optim::States::bfloat16},
      {"8bit", optim::States::eight_bits}};
  app.add_option_function<std::string>(
         "--states",
         [&options](const std::string& name) { options.update.states = kStates.at(name); },
         "Of the optimizer")
      ->check(CLI::IsMember(kStates))
      ->default_str("float32");
  app.add_option("--precision", options.precision,
                 "Of parameters and computing; with bfloat16 the optimizer keeps float32 weights")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  app.add_option("--dropout", options.dropout, "Instead of what the model's configuration says")
      ->check(number_between(0.0, 0.99));
}

void add_parts(CLI::App& app, TrainOptions& options) {
  auto* train = app.add_option("--train", options.train_only,
                               "Train only parameters whose names contain one of these")
                    ->delimiter(',');
  auto* freeze = app.add_option("--freeze", options.freeze,
                                "Leave parameters alone whose names contain one of these")
                     ->delimiter(',');
  auto* lora =
      app.add_option("--lora", options.lora.rank,
                     "Train adapters of this rank beside the model (LoRA), written for PEFT")
          ->check(number_above(0))
          ->excludes(train)
          ->excludes(freeze);
  app.add_option("--lora-alpha", options.lora.alpha, "Adapters count alpha / rank")
      ->check(number_above(0))
      ->capture_default_str()
      ->needs(lora);
  app.add_option("--lora-dropout", options.lora.dropout)
      ->check(number_between(0.0, 0.99))
      ->capture_default_str()
      ->needs(lora);
  app.add_option("--lora-targets", options.lora.targets,
                 "Names of the layers that get one (default: the projections of attention)")
      ->delimiter(',')
      ->needs(lora);
  app.add_flag("--merge", options.merge, "Write the whole model with the adapters added, too")
      ->needs(lora);
}

void add_written(CLI::App& app, TrainOptions& options) {
  app.add_option("--eval", options.evaluation_share, "Share of the documents kept for evaluation")
      ->check(number_between(0.0, 0.5))
      ->capture_default_str();
  app.add_option("--eval-every", options.evaluate_every, "Steps (default: at the end)")
      ->check(number_above(0));
  app.add_option("--save-every", options.save_every,
                 "Steps between checkpoints, besides those by time, at the end and when told to "
                 "stop")
      ->check(number_above(0));
  app.add_option("--save-minutes", options.save_minutes,
                 "Minutes between checkpoints; the last two are kept; 0: none by time")
      ->check(number_from(0))
      ->capture_default_str();
  app.add_flag("--dry-run", options.dry_run, "Only tell what the run would need and take");
  app.add_flag("--json", options.json, "Print the outcome as a last line of JSON");
}

}  // namespace

void add_train_options(CLI::App& app, TrainOptions& options) {
  add_what(app, options);
  add_granted_options(app, options.granted);
  add_amount(app, options);
  add_change(app, options);
  add_parts(app, options);
  add_written(app, options);
  app.footer(
      "Examples:\n"
      "  bottomless train --model ~/models/llama-3b --data chat.jsonl --memory 4GiB --disk "
      "/nvme/scratch --out run\n"
      "  bottomless train --model gpt-350m --data /usr/lib/python3 --steps 100 --memory 1GiB "
      "--disk /tmp --out run");
}

}  // namespace bottomless::train
