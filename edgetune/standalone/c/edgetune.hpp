// The C++ API of edgetune models (C++14, header only): owners of what edgetune.h gives, and exceptions.
//
//     edgetune::Model model = edgetune::Model::load("classifier");  // the folder of a bundle
//     edgetune::Instance instance(model, 2);                        // two threads
//     instance.set_input(0, pixels);                                // a std::vector, array, or pointer and bytes
//     instance.run();
//     const float *scores = instance.output<float>(0);
//
// A Model may be shared by threads; an Instance belongs to one at a time. An Instance keeps its Model.
#ifndef EDGETUNE_HPP
#define EDGETUNE_HPP

#include <memory>
#include <stdexcept>
#include <string>

#include "edgetune_library.h"

namespace edgetune {

class Error : public std::runtime_error {
 public:
  Error(edgetune_status status, const char *message) : std::runtime_error(message), status(status) {}
  const edgetune_status status;
};

template <class T> struct TypeOf;  // the edgetune_dtype of a C++ type
template <> struct TypeOf<bool> { static constexpr edgetune_dtype value = EDGETUNE_BOOL; };
template <> struct TypeOf<int8_t> { static constexpr edgetune_dtype value = EDGETUNE_INT8; };
template <> struct TypeOf<int16_t> { static constexpr edgetune_dtype value = EDGETUNE_INT16; };
template <> struct TypeOf<int32_t> { static constexpr edgetune_dtype value = EDGETUNE_INT32; };
template <> struct TypeOf<int64_t> { static constexpr edgetune_dtype value = EDGETUNE_INT64; };
template <> struct TypeOf<uint8_t> { static constexpr edgetune_dtype value = EDGETUNE_UINT8; };
template <> struct TypeOf<uint16_t> { static constexpr edgetune_dtype value = EDGETUNE_UINT16; };
template <> struct TypeOf<uint32_t> { static constexpr edgetune_dtype value = EDGETUNE_UINT32; };
template <> struct TypeOf<uint64_t> { static constexpr edgetune_dtype value = EDGETUNE_UINT64; };
template <> struct TypeOf<float> { static constexpr edgetune_dtype value = EDGETUNE_FLOAT32; };
template <> struct TypeOf<double> { static constexpr edgetune_dtype value = EDGETUNE_FLOAT64; };

class Model {
 public:
  // The model of a bundle's folder; of one that `edgetune bundle merge` wrote, the best that this CPU can run.
  static Model load(const std::string &folder, uint32_t flags = 0) {
    auto shared = std::make_shared<Shared>();
    edgetune_error error;
    edgetune_status status =
        edgetune_library_open_best(folder.c_str(), flags, &shared->library, &shared->model, &error);
    if (status != EDGETUNE_OK) throw Error(status, error.message);
    return Model(std::move(shared));
  }

  // A library by its own path or name, as an Android app has it; no weights where they are embedded.
  static Model load_library(const std::string &library, const char *weights, uint32_t flags = 0) {
    auto shared = std::make_shared<Shared>();
    edgetune_error error;
    edgetune_status status = edgetune_library_load(library.c_str(), &shared->library, &error);
    if (status == EDGETUNE_OK) status = shared->library.open(weights, flags, &shared->model, &error);
    if (status != EDGETUNE_OK) throw Error(status, error.message);
    return Model(std::move(shared));
  }

  // Where sizes vary: how many combinations there is code for, and the model of one of them, 0 being the largest.
  int32_t num_sizes() const { return api().num_sizes(get()); }
  Model size(int32_t index) const {
    auto sized = std::make_shared<Shared>();
    sized->library = api();
    sized->parent = shared_;
    edgetune_error error;
    edgetune_status status = api().open_size(get(), index, &sized->model, &error);
    if (status != EDGETUNE_OK) throw Error(status, error.message);
    return Model(std::move(sized));
  }

  const char *name() const { return api().model_name(get()); }
  const char *target() const { return api().model_target(get()); }
  int32_t num_inputs() const { return api().num_inputs(get()); }
  int32_t num_outputs() const { return api().num_outputs(get()); }
  const edgetune_tensor_info &input(int32_t index) const { return found(api().input_info(get(), index)); }
  const edgetune_tensor_info &output(int32_t index) const { return found(api().output_info(get(), index)); }
  edgetune_model *get() const { return shared_->model; }
  const edgetune_library &api() const { return shared_->library; }

 private:
  struct Shared {
    edgetune_library library = {};
    edgetune_model *model = nullptr;
    std::shared_ptr<Shared> parent;  // whose library this is
    Shared() = default;
    Shared(const Shared &) = delete;
    ~Shared() {
      if (model != nullptr) library.close(model);
      if (parent == nullptr) edgetune_library_unload(&library);
    }
  };

  explicit Model(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  static const edgetune_tensor_info &found(const edgetune_tensor_info *info) {
    if (info == nullptr) throw Error(EDGETUNE_ERROR_ARGUMENT, "the model has no tensor of this index");
    return *info;
  }

  std::shared_ptr<Shared> shared_;
};

class Instance {
 public:
  // threads: 0 for what the model was compiled for.
  explicit Instance(const Model &model, int threads = 0) : Instance(model, with_threads(threads)) {}

  Instance(const Model &model, const edgetune_options &options) : model_(model) {
    edgetune_error error;
    edgetune_status status = model_.api().create(model_.get(), &options, &instance_, &error);
    if (status != EDGETUNE_OK) throw Error(status, error.message);
  }

  Instance(Instance &&other) noexcept : model_(other.model_), instance_(other.instance_) {
    other.instance_ = nullptr;
  }
  Instance(const Instance &) = delete;
  Instance &operator=(const Instance &) = delete;
  ~Instance() { model_.api().free(instance_); }

  // Copies.
  void set_input(int32_t index, const void *data, size_t size_bytes) {
    check(model_.api().set_input(instance_, index, data, size_bytes));
  }
  template <class Container> void set_input(int32_t index, const Container &values) {
    set_input(index, values.data(), values.size() * sizeof(*values.data()));
  }

  // The instance's own memory, to write to and read from without a copy, valid as long as the instance; an output's
  // values, until the next run.
  template <class T> T *input(int32_t index) {
    typed<T>(model_.input(index));
    return static_cast<T *>(model_.api().input(instance_, index));
  }
  template <class T> const T *output(int32_t index) const {
    typed<T>(model_.output(index));
    return static_cast<const T *>(model_.api().output(instance_, index));
  }

  void run() { check(model_.api().run(instance_)); }
  const Model &model() const { return model_; }
  edgetune_instance *get() const { return instance_; }

 private:
  static edgetune_options with_threads(int threads) {
    edgetune_options options = {};
    options.threads = threads;
    return options;
  }

  template <class T> static void typed(const edgetune_tensor_info &info) {
    if (info.dtype != TypeOf<T>::value)
      throw Error(EDGETUNE_ERROR_ARGUMENT, (std::string(info.name) + " holds values of another type").c_str());
  }

  void check(edgetune_status status) const {
    if (status != EDGETUNE_OK) throw Error(status, model_.api().last_error(instance_));
  }

  Model model_;
  edgetune_instance *instance_ = nullptr;
};

}  // namespace edgetune

#endif
