// Buffer: owns one allocation of a backend's memory; move-only. Views into it are plain pointers.
#pragma once

#include <cstddef>
#include <utility>

namespace fox {

class Buffer {
 public:
  using Deleter = void (*)(void* data, size_t bytes);

  Buffer() = default;
  Buffer(void* data, size_t bytes, Deleter deleter)
      : data_(data), bytes_(bytes), deleter_(deleter) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      Reset();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
      deleter_ = other.deleter_;
    }
    return *this;
  }
  ~Buffer() { Reset(); }

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void Reset() {
    if (data_ != nullptr) deleter_(data_, bytes_);
    data_ = nullptr;
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
  Deleter deleter_ = nullptr;
};

}  // namespace fox
