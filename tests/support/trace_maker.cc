#include "support/trace_maker.h"

#include <string>

namespace bottomless {

TraceMaker::Storage* TraceMaker::make(Bytes bytes, Kind kind) {
  auto& storage = *storages_.emplace_back(std::make_unique<Storage>());
  storage.kind = kind;
  storage.blocks = 1;
  storage.block_bytes = storage.last_bytes = bytes;
  recorder_.born(storage);
  return &storage;
}

void TraceMaker::free(Storage* storage) { recorder_.died(*storage); }

void TraceMaker::run(std::string_view name, const std::vector<Use>& uses, double seconds) {
  uint64_t signature = std::hash<std::string_view>()(name);
  for (const Use& use : uses) signature = mix(signature, use.writes);
  recorder_.begin(name, signature);
  for (const Use& use : uses)
    recorder_.use(*use.storage, 0, {.writes = use.writes, .fetches = use.fetches});
  recorder_.computed(seconds);
}

TraceMaker::Storage* TraceMaker::run_making(std::string_view name, const std::vector<Use>& uses,
                                            Bytes bytes, double seconds) {
  run(name, uses, seconds);
  Storage* made = make(bytes);
  recorder_.use(*made, 0, {.writes = true, .fetches = false, .born = true});
  return made;
}

Trace training_step(const Network& network) {
  TraceMaker maker;
  const auto layers = static_cast<size_t>(network.layers);
  struct Layer {
    TraceMaker::Storage *parameter, *mean, *square, *gradient = nullptr, *input = nullptr;
  };
  std::vector<Layer> all;
  for (size_t i = 0; i < layers; ++i) {
    all.push_back({maker.make(network.parameter, Kind::parameter),
                   maker.make(network.parameter, Kind::state),
                   maker.make(network.parameter, Kind::state)});
  }
  const auto update = [&](Layer& layer) {
    maker.run("update",
              {{layer.parameter, true}, {layer.gradient}, {layer.mean, true}, {layer.square, true}},
              network.update);
    maker.free(layer.gradient);
    layer.gradient = nullptr;
  };
  Trace trace;
  for (int step = 0; step < 4; ++step) {
    TraceMaker::Storage* x = nullptr;
    for (size_t i = 0; i < layers; ++i) {
      Layer& layer = all[i];
      if (network.deferred && layer.gradient != nullptr) update(layer);
      std::vector<TraceMaker::Use> uses{{layer.parameter}};
      if (x != nullptr) uses.push_back({x});
      layer.input = x;
      x = maker.run_making("forward" + std::to_string(i), uses, network.activation,
                           network.forward);
    }
    TraceMaker::Storage* slope = maker.run_making("loss", {{x}}, network.activation, 0);
    maker.free(x);
    for (size_t i = layers; i-- > 0;) {
      Layer& layer = all[i];
      std::vector<TraceMaker::Use> uses{{slope}};
      if (layer.input != nullptr) uses.push_back({layer.input});
      layer.gradient = maker.run_making("gradient" + std::to_string(i), uses, network.parameter,
                                        network.backward / 2);
      TraceMaker::Storage* before =
          maker.run_making("backward" + std::to_string(i), {{slope}, {layer.parameter}},
                           network.activation, network.backward / 2);
      maker.free(slope);
      if (layer.input != nullptr) maker.free(layer.input);
      slope = before;
    }
    maker.free(slope);
    if (network.clipped) {
      for (size_t i = 0; i < layers; ++i)
        maker.run("norm" + std::to_string(i), {{all[i].gradient}}, network.update / 4);
    }
    if (!network.deferred) {
      for (Layer& layer : all) update(layer);
    }
    trace = maker.end_step();
  }
  return trace;
}

Trace random_step(Random& random, size_t events, size_t blocks, Bytes most_bytes) {
  // What happens is decided once and then done in three steps, of which the last is like the one before.
  struct Action {
    size_t first, second;
    bool two, writes, overwrites, replaces;
  };
  std::vector<Action> actions;
  for (size_t i = 0; i < events; ++i) {
    actions.push_back({random.below(blocks), random.below(blocks), random.one_in(2),
                       random.one_in(2), random.one_in(5), random.one_in(6)});
  }
  std::vector<Bytes> sizes;
  for (size_t i = 0; i < blocks; ++i) sizes.push_back(random.between(1, most_bytes));
  TraceMaker maker;
  std::vector<TraceMaker::Storage*> storages;
  for (size_t i = 0; i < blocks; ++i) storages.push_back(maker.make(sizes[i]));
  Trace trace;
  for (int step = 0; step < 4; ++step) {
    for (size_t i = 0; i < events; ++i) {
      const Action& action = actions[i];
      std::vector<TraceMaker::Use> uses{
          {storages[action.first], action.writes || action.overwrites, !action.overwrites}};
      if (action.two && action.second != action.first) uses.push_back({storages[action.second]});
      const std::string name = "operation" + std::to_string(i);
      maker.run(name, uses);
      if (!action.replaces) continue;
      maker.free(storages[action.first]);
      storages[action.first] = maker.run_making(name + "new", {}, sizes[action.first]);
    }
    trace = maker.end_step();
  }
  return trace;
}

}  // namespace bottomless
