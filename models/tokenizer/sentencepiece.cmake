# Provides the target fox_sentencepiece: the sentencepiece library, static, on the distribution's
# protobuf, so that it lives beside gRPC in one process (packaged shared libraries carry a second
# protobuf and abort there). Sources, first that works: -DFOX_SENTENCEPIECE_SOURCE=DIR, the source
# distribution on PyPI (checked by hash, kept in the build tree), the project's git repository.
set(FOX_SENTENCEPIECE_SOURCE "" CACHE PATH "sentencepiece source tree, 0.2.1 or later")
set(FOX_SENTENCEPIECE_VERSION 0.2.1)
set(FOX_SENTENCEPIECE_SHA256 8138cec27c2f2282f4a34d9a016e3374cd40e5c6e9cb335063db66a0a3b71fad)

# Sets `out` to a folder that holds sentencepiece's CMakeLists.txt.
function(fox_find_sentencepiece out)
  set(source "${FOX_SENTENCEPIECE_SOURCE}")
  if(NOT source)
    fox_source_package(sentencepiece ${FOX_SENTENCEPIECE_VERSION} ${FOX_SENTENCEPIECE_SHA256}
                       source)
    if(NOT source)
      include(FetchContent)
      # SOURCE_SUBDIR names no folder: only fetch; the options below must be set first.
      FetchContent_Declare(sentencepiece
        GIT_REPOSITORY https://github.com/google/sentencepiece.git
        GIT_TAG v${FOX_SENTENCEPIECE_VERSION} GIT_SHALLOW ON
        SOURCE_SUBDIR none)
      FetchContent_MakeAvailable(sentencepiece)
      set(source ${sentencepiece_SOURCE_DIR})
    endif()
  endif()
  if(NOT EXISTS ${source}/CMakeLists.txt)  # the Python distribution keeps it one level down
    set(source ${source}/sentencepiece)
  endif()
  if(NOT EXISTS ${source}/CMakeLists.txt)
    message(FATAL_ERROR "No sentencepiece sources; set -DFOX_SENTENCEPIECE_SOURCE=DIR")
  endif()
  set(${out} ${source} PARENT_SCOPE)
endfunction()

# In a function, so that the options below stay local to the subdirectory.
function(fox_add_sentencepiece source)
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)  # option() there must not override these
  set(CMAKE_POLICY_DEFAULT_CMP0126 NEW)
  set(CMAKE_UNITY_BUILD OFF)
  set(SPM_ENABLE_SHARED OFF)
  set(SPM_ENABLE_TCMALLOC OFF)
  set(SPM_BUILD_TEST OFF)
  set(SPM_PROTOBUF_PROVIDER package)
  # Its own stand-in for Abseil: inline and outside Abseil's inline namespace, so no symbol meets.
  set(SPM_ABSL_PROVIDER internal)
  set(CMAKE_MESSAGE_LOG_LEVEL WARNING)
  set(CMAKE_WARN_DEPRECATED OFF)
  add_subdirectory(${source} ${CMAKE_BINARY_DIR}/_deps/sentencepiece-build EXCLUDE_FROM_ALL)
endfunction()

find_package(Protobuf REQUIRED)
fox_find_sentencepiece(fox_sentencepiece_dir)
fox_add_sentencepiece(${fox_sentencepiece_dir})
target_compile_options(sentencepiece-static PRIVATE -w)
# The full protobuf library as gRPC links it, not protobuf-lite: one copy of the runtime.
set_target_properties(sentencepiece-static PROPERTIES
  INTERFACE_LINK_LIBRARIES "${Protobuf_LIBRARIES};Threads::Threads")

add_library(fox_sentencepiece INTERFACE)
target_link_libraries(fox_sentencepiece INTERFACE sentencepiece-static)
# sentencepiece_processor.h, and sentencepiece_model.pb.h, which protoc writes.
target_include_directories(fox_sentencepiece SYSTEM INTERFACE
  ${fox_sentencepiece_dir}/src ${CMAKE_BINARY_DIR}/_deps/sentencepiece-build/src)
