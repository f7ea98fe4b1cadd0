#include "model/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "device/buffer.h"
#include "device/thread_pool.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/test_files.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/weight_packer.h"
#include "model/shard.h"
#include "model/weight_source.h"
#include "testing/passed_on_weights.h"

namespace quire {
namespace {

const std::filesystem::path kFixtures = QUIRE_HF_FIXTURES;

// A model's weights in memory of their own.
struct Loaded {
  Loaded(const ModelConfig& config, WeightSource& source, Executor& executor,
         const LoadProgress& progress = {})
      : memory("weights", Bytes(config, source)) {
    Carver carver(memory.bytes());
    cpu::CpuWeightPacker packer(carver, executor, progress);
    weights = LoadWeights(config, source, packer);
    EXPECT_EQ(carver.used(), memory.size());
  }
  static ByteOffset Bytes(const ModelConfig& config, WeightSource& source) {
    SerialExecutor serial;
    Carver counter;
    cpu::CpuWeightPacker packer(counter, serial);
    LoadWeights(config, source, packer);
    return counter.used();
  }

  Buffer memory;
  ModelWeights weights;
};

// A copy of a fixture whose tensors and config can be changed.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& name)
      : files_(TensorSet::Open(kFixtures / name)),
        tensors_(files_.tensors().begin(), files_.tensors().end()),
        config_(ReadJsonFile(kFixtures / name / "config.json")) {}

  Json& config() { return config_; }
  StoredTensor& Tensor(const std::string& name) {
    const auto found = std::ranges::find(tensors_, name, &StoredTensor::name);
    if (found == tensors_.end()) throw std::runtime_error("no tensor " + name);
    return *found;
  }
  // Beside the others; its bytes are those of `like`.
  void Add(const std::string& name, const std::string& like) {
    StoredTensor tensor = Tensor(like);
    tensor.name = name;
    tensors_.push_back(std::move(tensor));
  }
  // The same with zeros of its own.
  void AddZeros(const std::string& name, FileDType dtype, std::vector<int64_t> shape) {
    int64_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    changed_.emplace_back(static_cast<size_t>((FileDTypeBytes(dtype) * elements).raw()));
    tensors_.push_back(
        {.name = name, .dtype = dtype, .shape = std::move(shape), .bytes = changed_.back()});
  }
  void PutUnder(const std::string& prefix) {
    for (StoredTensor& tensor : tensors_) tensor.name = prefix + tensor.name;
  }
  void Remove(const std::string& name) {
    std::erase_if(tensors_, [&](const StoredTensor& tensor) { return tensor.name == name; });
  }

  // Puts `bits` into a tensor, as its element `i`.
  template <class Bits>
  void Change(const std::string& name, size_t i, Bits bits) {
    StoredTensor& tensor = Tensor(name);
    changed_.emplace_back(tensor.bytes.begin(), tensor.bytes.end());
    std::memcpy(changed_.back().data() + i * sizeof(Bits), &bits, sizeof(Bits));
    tensor.bytes = changed_.back();
  }

  // Writes it and checks it as a load would; the message of the refusal.
  std::string Refusal() {
    Write();
    return InvalidArgument([&] { Check(); }, dir_.path());
  }
  // The same of a load that drafts.
  std::string RefusalToDraft() {
    Write();
    return InvalidArgument([&] { Check(WithDraftLayer(ReadModelConfig(dir_.path()))); },
                           dir_.path());
  }
  void Write() {
    dir_.Write("config.json", config_.dump());
    WriteSafetensors(dir_.path() / "model.safetensors", tensors_);
  }
  void Check() const { Check(ReadModelConfig(dir_.path())); }
  void Check(const ModelConfig& config) const {
    SerialExecutor serial;
    Carver counter;
    cpu::CpuWeightPacker packer(counter, serial);
    LoadWeights(config, *OpenWeightFiles(dir_.path(), config), packer);
  }
  // The message of a refusal that comes with the data.
  std::string RefusalOfData() {
    Write();
    Check();
    const ModelConfig config = ReadModelConfig(dir_.path());
    const auto source = OpenWeightFiles(dir_.path(), config);
    ThreadPool pool(2);
    return InvalidArgument([&] { (void)Loaded(config, *source, pool); }, dir_.path());
  }
  const TempDir& dir() const { return dir_; }

 private:
  TempDir dir_;
  TensorSet files_;
  std::vector<StoredTensor> tensors_;
  std::deque<std::vector<std::byte>> changed_;
  Json config_;
};

TEST(WeightsTest, AnUnchangedCopyIsAccepted) {
  for (const char* name : {"v3_mtp", "v3_fp8", "v2_tied_bias"}) {
    Checkpoint checkpoint(name);
    checkpoint.Write();
    checkpoint.Check();
  }
}

TEST(WeightsTest, AMissingTensorIsRefusedByName) {
  for (const char* name :
       {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
        "model.layers.1.self_attn.kv_b_proj.weight", "model.layers.1.mlp.gate.weight",
        "model.layers.1.mlp.gate.e_score_correction_bias",
        "model.layers.1.mlp.experts.3.down_proj.weight"}) {
    Checkpoint checkpoint("v3_mtp");
    checkpoint.Remove(name);
    EXPECT_NE(checkpoint.Refusal().find(name), std::string::npos) << name;
  }
}

std::string NothingReads(const std::string& first, int count) {
  return "DIR/model.safetensors: tensor '" + first +
         "': expected only tensors that the model of config.json is computed from, got " +
         std::to_string(count) + " that nothing reads, this one first";
}

TEST(WeightsTest, TensorsThatNothingReadsAreRefusedByNameAndNumber) {
  const std::string norm = "model.layers.0.input_layernorm.weight";
  for (const char* name :
       {"model.layers.0.self_attn.q_norm.weight", "model.layers.1.self_attn.indexer.wk.weight",
        "model.layers.0.self_attn.q_a_proj.lora_A.weight", "model.layers.0.self_attn.o_proj.bias",
        "model.layers.0.post_mlp_layernorm.weight", "model.layers.00.input_layernorm.weight",
        "model.layers.2x.eh_proj.weight", "model.layers.0.mlp.gate_proj.weight_scale_inv",
        "rotary_emb.inv_freq", "lm_head.weights", "language_model.lm_head.weight"}) {
    Checkpoint checkpoint("v3_mtp");
    checkpoint.Add(name, norm);
    EXPECT_EQ(checkpoint.Refusal(), NothingReads(name, 1));
  }
  Checkpoint checkpoint("v3_mtp");
  for (const char* name : {"z", "b", "c"}) checkpoint.Add(name, norm);
  EXPECT_EQ(checkpoint.Refusal(), NothingReads("b", 3));
}

TEST(WeightsTest, AConfigThatTellsOfLessThanTheFileIsRefused) {
  const auto refusal = [](const char* fixture, const char* key, const Json& value) {
    Checkpoint checkpoint(fixture);
    checkpoint.config()[key] = value;
    return checkpoint.Refusal();
  };
  EXPECT_EQ(refusal("v3_mtp", "num_hidden_layers", 1),
            NothingReads("model.layers.1.input_layernorm.weight", 38));
  EXPECT_EQ(refusal("v3_mtp", "n_shared_experts", 0),
            NothingReads("model.layers.1.mlp.shared_experts.down_proj.weight", 3));
  EXPECT_EQ(refusal("v3_mtp", "tie_word_embeddings", true), NothingReads("lm_head.weight", 1));
  EXPECT_EQ(refusal("v3_tied_bias", "attention_bias", false),
            NothingReads("model.layers.0.self_attn.kv_a_proj_with_mqa.bias", 6));
  EXPECT_EQ(refusal("axk1", "model_type", "deepseek_v3")
                .find("DIR/model.safetensors: tensor '"
                      "model.layers.0.post_mlp_layernorm.weight'"),
            0u);
}

// v3_mtp as a sparse model: its first layer has an indexer, the second shares its choice.
class SparseCheckpoint : public Checkpoint {
 public:
  static constexpr const char* kIndexer = "model.layers.0.self_attn.indexer.";
  static constexpr int kHeads = 3, kDim = 20;

  SparseCheckpoint() : Checkpoint("v3_mtp") {
    config()["index_topk"] = 8;
    config()["index_n_heads"] = kHeads;
    config()["index_head_dim"] = kDim;
    config()["indexer_types"] = {"full", "shared"};
    AddIndexer(kIndexer, FileDType::kBf16);
  }
  void AddIndexer(const std::string& prefix, FileDType matrices) {
    const int64_t rank = config()["q_lora_rank"].get<int64_t>();
    const int64_t hidden = config()["hidden_size"].get<int64_t>();
    AddZeros(prefix + "wq_b.weight", matrices, {kHeads * kDim, rank});
    AddZeros(prefix + "wk.weight", matrices, {kDim, hidden});
    AddZeros(prefix + "k_norm.weight", FileDType::kF32, {kDim});
    AddZeros(prefix + "k_norm.bias", FileDType::kF32, {kDim});
    AddZeros(prefix + "weights_proj.weight", FileDType::kF32, {kHeads, hidden});
  }
};

constexpr const char* kIndexerTensors[] = {"wq_b.weight", "wk.weight", "k_norm.weight",
                                           "k_norm.bias", "weights_proj.weight"};

TEST(WeightsTest, ALayerThatChoosesHasAnIndexer) {
  SparseCheckpoint checkpoint;
  checkpoint.Write();
  checkpoint.Check();
  const ModelConfig config = ReadModelConfig(checkpoint.dir().path());
  SerialExecutor serial;
  const Loaded loaded(config, *OpenWeightFiles(checkpoint.dir().path(), config), serial);
  const IndexerWeights& indexer = loaded.weights.layers[0].attention.indexer;
  EXPECT_EQ(indexer.q_up.shape.outputs, 60);
  EXPECT_EQ(indexer.key.shape.outputs, 20);
  EXPECT_EQ(indexer.gate.shape.outputs, 3);
  EXPECT_EQ(indexer.gate.format, WeightFormat::kF32);
  EXPECT_EQ(indexer.key_norm_bias.size(), 20u);
  EXPECT_TRUE(loaded.weights.layers[1].attention.indexer.empty());
}

TEST(WeightsTest, AnIndexersMissingTensorIsRefusedByName) {
  for (const char* name : kIndexerTensors) {
    SparseCheckpoint checkpoint;
    const std::string tensor = SparseCheckpoint::kIndexer + std::string(name);
    checkpoint.Remove(tensor);
    EXPECT_NE(checkpoint.Refusal().find(tensor), std::string::npos) << name;
  }
}

TEST(WeightsTest, AnIndexerOfALayerThatSharesIsRefusedByName) {
  for (const char* name : kIndexerTensors) {
    SparseCheckpoint checkpoint;
    const std::string tensor = "model.layers.1.self_attn.indexer." + std::string(name);
    checkpoint.Add(tensor, SparseCheckpoint::kIndexer + std::string(name));
    EXPECT_EQ(checkpoint.Refusal(), NothingReads(tensor, 1));
  }
}

TEST(WeightsTest, WhetherAnIndexersMatrixIsQuantisedIsReadOffTheTensor) {
  SparseCheckpoint checkpoint;
  checkpoint.config()["quantization_config"] = {{"quant_method", "fp8"},
                                                {"weight_block_size", {16, 16}},
                                                {"modules_to_not_convert", {"indexer.wq_b"}}};
  for (const char* name : kIndexerTensors) {
    checkpoint.Remove(SparseCheckpoint::kIndexer + std::string(name));
  }
  checkpoint.AddIndexer(SparseCheckpoint::kIndexer, FileDType::kF8E4m3);
  const int64_t rank = checkpoint.config()["q_lora_rank"].get<int64_t>();
  const int64_t hidden = checkpoint.config()["hidden_size"].get<int64_t>();
  checkpoint.AddZeros(SparseCheckpoint::kIndexer + std::string("wq_b.weight_scale_inv"),
                      FileDType::kF32, {4, (rank + 15) / 16});
  checkpoint.AddZeros(SparseCheckpoint::kIndexer + std::string("wk.weight_scale_inv"),
                      FileDType::kF32, {2, (hidden + 15) / 16});
  checkpoint.Write();
  checkpoint.Check();
}

TEST(WeightsTest, PartsThatAModelIsWholeWithoutMayBeThere) {
  Checkpoint draft("v3_mtp");  // its third layer is for multi-token prediction
  draft.Add("model.layers.0.self_attn.rotary_emb.inv_freq",
            "model.layers.0.input_layernorm.weight");
  draft.Add("model.layers.2.shared_head.norm.bias", "model.layers.0.input_layernorm.weight");
  draft.Write();
  draft.Check();
  // A layer behind the last is a draft layer by what it has, not by its place.
  draft.Remove("model.layers.2.eh_proj.weight");
  EXPECT_NE(draft.Refusal().find("model.layers.2."), std::string::npos);

  Checkpoint tied("v3_tied_bias");
  tied.Add("lm_head.weight", "model.embed_tokens.weight");
  tied.Write();
  tied.Check();
  tied.Change<uint16_t>("lm_head.weight", 3, 0x3f81);
  EXPECT_EQ(tied.Refusal(), NothingReads("lm_head.weight", 1));
}

// ---- The draft layer ----

TEST(WeightsTest, TheDraftLayerIsReadOnlyWhereItDrafts) {
  SerialExecutor serial;
  const ModelConfig config = ReadModelConfig(kFixtures / "v3_mtp");
  const auto source = OpenWeightFiles(kFixtures / "v3_mtp", config);
  const Loaded plain(config, *source, serial);
  EXPECT_FALSE(plain.weights.draft.has_value());
  const Loaded drafting(WithDraftLayer(config), *source, serial);
  ASSERT_TRUE(drafting.weights.draft.has_value());
  EXPECT_GT(drafting.memory.size(), plain.memory.size());
  const DraftWeights& draft = *drafting.weights.draft;
  EXPECT_EQ(draft.layer.kind, LayerKind::kMoe);
  EXPECT_EQ(draft.join.shape.outputs, config.hidden_size);
  EXPECT_EQ(draft.join.shape.inputs, 2 * config.hidden_size);
  // What the trunk is made of lies where it lay.
  EXPECT_EQ(std::memcmp(plain.memory.bytes().data(), drafting.memory.bytes().data(),
                        static_cast<size_t>(plain.memory.size().raw())),
            0);
}

TEST(WeightsTest, AMissingOrMisshapenDraftTensorIsRefusedByName) {
  const std::string prefix = "model.layers.2.";
  for (const char* name :
       {"enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight",
        "input_layernorm.weight", "self_attn.kv_b_proj.weight", "mlp.gate.weight",
        "mlp.experts.7.up_proj.weight", "mlp.shared_experts.down_proj.weight"}) {
    Checkpoint missing("v3_mtp");
    missing.Remove(prefix + name);
    EXPECT_NE(missing.RefusalToDraft().find(prefix + name), std::string::npos) << name;
  }
  Checkpoint misshapen("v3_mtp");
  misshapen.Tensor(prefix + "eh_proj.weight").shape = {64, 32};
  EXPECT_EQ(
      misshapen.RefusalToDraft(),
      "DIR/model.safetensors: tensor 'model.layers.2.eh_proj.weight': expected shape [32, 64], "
      "got [64, 32]");
}

TEST(WeightsTest, OfTheDraftLayerItsCopiesOfEmbeddingAndHeadAloneAreNotRead) {
  Checkpoint copies("v3_mtp");
  copies.Change<uint16_t>("model.layers.2.shared_head.head.weight", 3, 0x7fc0);  // NaN
  copies.Remove("model.layers.2.embed_tokens.weight");
  copies.Write();
  copies.Check(WithDraftLayer(ReadModelConfig(copies.dir().path())));
  Checkpoint more("v3_mtp");
  more.Add("model.layers.2.shared_head.norm.bias", "model.layers.0.input_layernorm.weight");
  EXPECT_EQ(more.RefusalToDraft(), NothingReads("model.layers.2.shared_head.norm.bias", 1));
  // Of a sparse model it has an indexer.
  Checkpoint sparse("v32_mtp");
  sparse.Write();
  sparse.Check(WithDraftLayer(ReadModelConfig(sparse.dir().path())));
  sparse.Remove("model.layers.2.self_attn.indexer.wk.weight");
  EXPECT_NE(sparse.RefusalToDraft().find("model.layers.2.self_attn.indexer.wk.weight"),
            std::string::npos);
}

TEST(WeightsTest, OfAVisionLanguageModelOnlyTheLanguageModelIsRead) {
  Checkpoint checkpoint("v3_mtp");
  const Json text = checkpoint.config();
  checkpoint.config() = {{"text_config", text}};
  checkpoint.PutUnder("language_model.");
  checkpoint.Add("vision_tower.patch_embed.proj.bias", "language_model.model.norm.weight");
  checkpoint.Write();
  checkpoint.Check();
  checkpoint.Add("language_model.model.norm.bias", "language_model.model.norm.weight");
  EXPECT_EQ(checkpoint.Refusal(), NothingReads("language_model.model.norm.bias", 1));
}

TEST(WeightsTest, NumbersThatAreNotFiniteAreRefusedByTensorAndPlace) {
  const auto refused = [](const std::string& tensor, const std::string& place) {
    return "DIR/model.safetensors: tensor '" + tensor +
           "': expected finite numbers, got another at " + place;
  };
  const std::string matrix = "model.layers.1.mlp.gate.weight";
  for (const uint16_t bits :
       {uint16_t{0x7f80}, uint16_t{0xff80}, uint16_t{0x7fc0}, uint16_t{0xffff}}) {
    Checkpoint checkpoint("v3_mtp");
    const auto columns = static_cast<size_t>(checkpoint.Tensor(matrix).shape[1]);
    checkpoint.Change(matrix, 2 * columns + 5, bits);
    checkpoint.Change(matrix, 3 * columns + 1, bits);
    EXPECT_EQ(checkpoint.RefusalOfData(), refused(matrix, "[2, 5]"));
  }
  Checkpoint half("v3_f16");
  half.Change<uint16_t>("model.norm.weight", 7, 0xfc00);
  EXPECT_EQ(half.RefusalOfData(), refused("model.norm.weight", "[7]"));
  Checkpoint single("v3_f32");
  single.Change<uint32_t>("lm_head.weight", 0, 0x7f800001);
  EXPECT_EQ(single.RefusalOfData(), refused("lm_head.weight", "[0, 0]"));
  const std::string narrow = "model.layers.0.self_attn.o_proj.weight";
  Checkpoint eight("v3_fp8");
  ASSERT_EQ(eight.Tensor(narrow).dtype, FileDType::kF8E4m3);
  eight.Change<uint8_t>(narrow, 1, 0xff);
  EXPECT_EQ(eight.RefusalOfData(), refused(narrow, "[0, 1]"));
  Checkpoint scale("v3_fp8");
  scale.Change<uint32_t>(narrow + "_scale_inv", 0, 0x7fc00000);
  EXPECT_EQ(scale.RefusalOfData(), refused(narrow + "_scale_inv", "[0, 0]"));
}

TEST(WeightsTest, AWrongShapeIsRefusedWithBothShapes) {
  Checkpoint checkpoint("v3_mtp");
  StoredTensor& tensor = checkpoint.Tensor("model.layers.0.self_attn.o_proj.weight");
  const std::vector<int64_t> right = tensor.shape;
  std::swap(tensor.shape[0], tensor.shape[1]);
  ASSERT_NE(right, tensor.shape);
  EXPECT_EQ(
      checkpoint.Refusal(),
      "DIR/model.safetensors: tensor 'model.layers.0.self_attn.o_proj.weight': expected shape [" +
          std::to_string(right[0]) + ", " + std::to_string(right[1]) + "], got [" +
          std::to_string(right[1]) + ", " + std::to_string(right[0]) + "]");
}

TEST(WeightsTest, ATypeThatIsNotComputedWithIsRefused) {
  Checkpoint checkpoint("v3_mtp");
  checkpoint.Tensor("lm_head.weight").dtype = FileDType::kI16;  // as many bytes
  EXPECT_EQ(
      checkpoint.Refusal(),
      "DIR/model.safetensors: tensor 'lm_head.weight': expected F32, F16, BF16 or F8_E4M3, got "
      "I16");
  Checkpoint norm("v3_mtp");
  norm.Tensor("model.norm.weight").dtype = FileDType::kU16;
  EXPECT_EQ(
      norm.Refusal(),
      "DIR/model.safetensors: tensor 'model.norm.weight': expected F32, F16 or BF16, got U16");
}

TEST(WeightsTest, Fp8NeedsScalesThatFit) {
  const std::string name = "model.layers.0.self_attn.o_proj.weight";
  Checkpoint without_scales("v3_fp8");
  without_scales.Remove(name + "_scale_inv");
  EXPECT_NE(without_scales.Refusal().find(name + "_scale_inv"), std::string::npos);

  Checkpoint wrong_scales("v3_fp8");
  StoredTensor& scales = wrong_scales.Tensor(name + "_scale_inv");
  scales.shape = {scales.shape[0] * scales.shape[1]};
  EXPECT_NE(wrong_scales.Refusal().find("tensor '" + name + "_scale_inv': expected shape"),
            std::string::npos);

  Checkpoint without_config("v3_fp8");
  without_config.config().erase("quantization_config");
  EXPECT_NE(without_config.Refusal().find(
                "is F8_E4M3, but config.json has no quantization_config that says how"),
            std::string::npos);
}

TEST(WeightsTest, ABrokenFolderIsRefused) {
  Checkpoint checkpoint("v3_mtp");
  checkpoint.Write();
  const std::string whole = ReadAll(checkpoint.dir().path() / "model.safetensors");
  for (const size_t kept :
       {whole.size() - 1, whole.size() / 2, size_t{100}, size_t{4}, size_t{0}}) {
    checkpoint.dir().Write("model.safetensors", whole.substr(0, kept));
    const std::string message =
        InvalidArgument([&] { checkpoint.Check(); }, checkpoint.dir().path());
    EXPECT_EQ(message.rfind("DIR/model.safetensors", 0), 0u) << message;
  }
  std::filesystem::remove(checkpoint.dir().path() / "model.safetensors");
  EXPECT_NE(InvalidArgument([&] { checkpoint.Check(); }, checkpoint.dir().path()).find("DIR"),
            std::string::npos);
  std::filesystem::remove(checkpoint.dir().path() / "config.json");
  EXPECT_EQ(InvalidArgument([&] { checkpoint.Check(); }, checkpoint.dir().path()),
            "DIR/config.json: cannot open: No such file or directory");
}

std::vector<float> Row(const Weight& weight, int64_t n, int64_t matrix = 0) {
  std::vector<float> row(static_cast<size_t>(weight.shape.inputs));
  cpu::UnpackRow(cpu::MatrixOf(weight, matrix), n, row);
  return row;
}

TEST(WeightsTest, HeadsAreTheRowsOfKvBAndItsTransposedRows) {
  const std::filesystem::path folder = kFixtures / "v3_f32";
  const ModelConfig config = ReadModelConfig(folder);
  const auto source = OpenWeightFiles(folder, config);
  SerialExecutor serial;
  const Loaded loaded(config, *source, serial);
  const TensorSet files = TensorSet::Open(folder);
  const StoredTensor& stored = files.At("model.layers.1.self_attn.kv_b_proj.weight");
  const auto element = [&](int64_t row, int64_t column) {
    float value;
    std::memcpy(&value, stored.bytes.data() + (row * config.latent_dim + column) * sizeof(float),
                sizeof(float));
    return value;
  };
  const AttentionWeights& attention = loaded.weights.layers[1].attention;
  for (int64_t h = 0; h < config.num_heads; ++h) {
    const int64_t first = h * (config.nope_dim + config.value_dim);
    for (int64_t c = 0; c < config.latent_dim; ++c) {
      const std::vector<float> key = Row(attention.key_heads, c, h);
      for (int64_t i = 0; i < config.nope_dim; ++i) {
        ASSERT_EQ(key[static_cast<size_t>(i)], element(first + i, c));
      }
    }
    for (int64_t i = 0; i < config.value_dim; ++i) {
      const std::vector<float> value = Row(attention.value_heads, i, h);
      for (int64_t c = 0; c < config.latent_dim; ++c) {
        ASSERT_EQ(value[static_cast<size_t>(c)], element(first + config.nope_dim + i, c));
      }
    }
  }
}

TEST(WeightsTest, ProgressGrowsToTheEnd) {
  const std::filesystem::path folder = kFixtures / "v3_mtp";
  const ModelConfig config = ReadModelConfig(folder);
  const auto source = OpenWeightFiles(folder, config);
  SerialExecutor serial;
  std::vector<ByteOffset> reports;
  const Loaded loaded(config, *source, serial, [&](ByteOffset bytes) { reports.push_back(bytes); });
  EXPECT_TRUE(std::ranges::is_sorted(reports));
  ASSERT_GT(reports.size(), 10u);
  EXPECT_EQ(reports.back(), loaded.memory.size());
}

TEST(WeightsTest, TiedEmbeddingsAreStoredOnce) {
  const std::filesystem::path folder = kFixtures / "v3_tied_bias";
  const ModelConfig config = ReadModelConfig(folder);
  ASSERT_TRUE(config.tied_embeddings);
  const auto source = OpenWeightFiles(folder, config);
  SerialExecutor serial;
  const Loaded loaded(config, *source, serial);
  EXPECT_EQ(loaded.weights.head.data, loaded.weights.embedding.data);
}

// ---- Ranks ----

// Notes which outputs of each matrix are read.
class NotedReads final : public testing::PassedOnWeights {
 public:
  using Reads = std::map<std::string, std::vector<Share>>;

  NotedReads(WeightSource& source, Reads& reads) : PassedOnWeights(source), reads_(reads) {}

  MatrixSource Matrix(const std::string& name, MatrixShape shape, Share outputs,
                      Executor& executor) override {
    reads_[name].push_back(outputs);
    whole_[name] = shape.outputs;
    return PassedOnWeights::Matrix(name, shape, outputs, executor);
  }

  // Of the whole matrix.
  const std::map<std::string, int64_t>& outputs() const { return whole_; }

 private:
  Reads& reads_;
  std::map<std::string, int64_t> whole_;
};

// What every rank reads whole: small, or needed for the rows that all ranks keep.
bool IsReadByAll(const std::string& name) {
  for (const char* part : {"q_a_proj", "kv_a_proj", "mlp.gate.weight", "indexer."}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST(RankWeightsTest, EveryRowIsReadByOneRankButForWhatAllNeed) {
  SerialExecutor serial;
  for (const char* name : {"v3_mtp", "v32_fp8", "youtu"}) {
    const ModelConfig config = ReadModelConfig(kFixtures / name);
    const auto source = OpenWeightFiles(kFixtures / name, config);
    for (const int32_t ep_size : {1, 4}) {
      if (ep_size > 1 && config.moe.expert_width == 0) continue;
      NotedReads::Reads reads;
      NotedReads noted(*source, reads);
      for (int32_t rank = 0; rank < 4; ++rank) {
        const Loaded loaded(WithShard(config, rank, 4, ep_size), noted, serial);
      }
      EXPECT_TRUE(reads.contains("model.embed_tokens.weight"));
      for (auto& [matrix, shares] : reads) {
        const int64_t outputs = noted.outputs().at(matrix);
        if (IsReadByAll(matrix)) {
          EXPECT_EQ(shares.size(), 4u) << matrix;
          for (const Share& share : shares) EXPECT_EQ(share.count, outputs) << matrix;
          continue;
        }
        const bool is_expert = matrix.find(".experts.") != std::string::npos;
        EXPECT_EQ(shares.size(), is_expert && ep_size > 1 ? 1u : 4u) << matrix;
        std::ranges::sort(shares, {}, &Share::first);
        int64_t end = 0;
        for (const Share& share : shares) {
          EXPECT_EQ(share.first, end) << matrix;
          end = share.end();
        }
        EXPECT_EQ(end, outputs) << matrix;
      }
    }
  }
}

// One that another rank reads is not this one's to refuse; one of its own is.
TEST(RankWeightsTest, ANumberThatIsNoneIsRefusedByTheRankThatReadsIt) {
  Checkpoint checkpoint("v3_mtp");
  checkpoint.Change("lm_head.weight", 0, ~uint32_t{0});  // not a number in any type
  checkpoint.Write();
  const ModelConfig config = ReadModelConfig(checkpoint.dir().path());
  const auto source = OpenWeightFiles(checkpoint.dir().path(), config);
  SerialExecutor serial;
  EXPECT_THROW(Loaded(WithShard(config, 0, 2, 1), *source, serial), Error);
  EXPECT_NO_THROW(Loaded(WithShard(config, 1, 2, 1), *source, serial));
}

TEST(RankWeightsTest, AreTheRowsOfTheWhole) {
  SerialExecutor serial;
  for (const char* name : {"v3_mtp", "v3_fp8"}) {
    const ModelConfig config = ReadModelConfig(kFixtures / name);
    for (const bool is_dummy : {false, true}) {
      const auto source =
          is_dummy ? MakeDummyWeights(config) : OpenWeightFiles(kFixtures / name, config);
      const Loaded whole(config, *source, serial);
      for (int32_t rank = 0; rank < 4; ++rank) {
        const ModelConfig part = WithShard(config, rank, 4, 1);
        const Loaded loaded(part, *source, serial);
        const auto expect_rows = [&](const Weight& own, const Weight& all, Share share) {
          ASSERT_EQ(own.shape.outputs, share.count);
          for (int64_t n = 0; n < share.count; ++n) {
            ASSERT_EQ(Row(own, n), Row(all, share.first + n)) << name << " rank " << rank;
          }
        };
        const LayerWeights& layer = loaded.weights.layers[0];
        const LayerWeights& all = whole.weights.layers[0];
        expect_rows(loaded.weights.embedding, whole.weights.embedding, part.Own(config.vocab_size));
        expect_rows(layer.attention.out, all.attention.out, part.Own(config.hidden_size));
        expect_rows(layer.mlp.gate, all.mlp.gate, part.Own(config.dense_width));
        expect_rows(layer.mlp.down, all.mlp.down, part.Own(config.hidden_size));
      }
    }
  }
}

ModelConfig DummyConfig(const char* dtype) {
  ModelConfig config = ReadModelConfig(kFixtures / "v3_mtp");
  config.weight_dtype = dtype;
  return config;
}

TEST(DummyWeightsTest, AreTheSameWheneverAndWhereverTheyAreMade) {
  const ModelConfig config = DummyConfig("bfloat16");
  SerialExecutor serial;
  ThreadPool threads(3);
  const Loaded once(config, *MakeDummyWeights(config), serial);
  const Loaded again(config, *MakeDummyWeights(config), threads);
  EXPECT_TRUE(std::ranges::equal(once.memory.bytes(), again.memory.bytes()));
  // The first values of a matrix, for all time: figures in docs were measured with them.
  const std::vector<float> row = Row(once.weights.embedding, 0);
  EXPECT_EQ(std::vector<float>(row.begin(), row.begin() + 4),
            (std::vector<float>{-0.24609375f, 0.23828125f, -0.234375f, -0.21484375f}));
}

TEST(DummyWeightsTest, AreTheSameNumbersInEveryWideFormat) {
  SerialExecutor serial;
  const ModelConfig wide = DummyConfig("float32");
  const Loaded expected(wide, *MakeDummyWeights(wide), serial);
  for (const char* dtype : {"float16", "bfloat16"}) {
    const ModelConfig config = DummyConfig(dtype);
    const Loaded loaded(config, *MakeDummyWeights(config), serial);
    EXPECT_LT(loaded.memory.size(), expected.memory.size());
    for (int64_t n = 0; n < 20; ++n) {
      EXPECT_EQ(Row(loaded.weights.head, n), Row(expected.weights.head, n)) << dtype;
    }
  }
}

TEST(DummyWeightsTest, AModelOfFp8BlocksGetsThem) {
  const ModelConfig config = ReadModelConfig(kFixtures / "v3_fp8");
  SerialExecutor serial;
  const Loaded loaded(config, *MakeDummyWeights(config), serial);
  EXPECT_EQ(loaded.weights.layers[0].attention.out.format, WeightFormat::kFp8Block);
  EXPECT_EQ(loaded.weights.head.format, WeightFormat::kBf16);
}

TEST(DummyWeightsTest, ProductsOfUnitInputsHaveAboutUnitSize) {
  const ModelConfig config = DummyConfig("float32");
  SerialExecutor serial;
  const Loaded loaded(config, *MakeDummyWeights(config), serial);
  double squares = 0;
  for (int64_t n = 0; n < config.vocab_size; ++n) {
    for (const float value : Row(loaded.weights.head, n)) squares += double{value} * value;
  }
  EXPECT_GT(squares / static_cast<double>(config.vocab_size), 0.4);
  EXPECT_LT(squares / static_cast<double>(config.vocab_size), 2.5);
}

}  // namespace
}  // namespace quire
