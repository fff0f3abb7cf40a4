# Provides the target fox_xgrammar: the core of the xgrammar library, static, without its Python
# bindings and kernels. The library cannot be interrupted, has no limits, and reads some grammars
# and expressions wrongly. The patches in xgrammar/, one for each of its files, mend that; each
# opens with its reasons. They call SpendWork (work_meter.h) where it loops, recurses and grows.
set(FOX_XGRAMMAR_VERSION 0.1.28)
set(FOX_XGRAMMAR_SHA256 8e7edc1ff7a9030f6a16021fc3bed5f0c86ead28be5b9d30305993c6670132cd)
file(GLOB patches CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/xgrammar/*.patch)
fox_source_package(xgrammar ${FOX_XGRAMMAR_VERSION} ${FOX_XGRAMMAR_SHA256} source ${patches})
if(NOT source)
  message(FATAL_ERROR "No xgrammar sources: put xgrammar-${FOX_XGRAMMAR_VERSION}.tar.gz into "
                      "${CMAKE_BINARY_DIR}/_deps/xgrammar")
endif()

file(GLOB sources ${source}/cpp/*.cc ${source}/cpp/support/recursion_guard.cc)
list(FILTER sources EXCLUDE REGEX "/(json_schema_converter|regex_converter|structural_tag)\\.cc$")
add_library(fox_xgrammar STATIC ${sources} character_walk.cc)
target_include_directories(fox_xgrammar PRIVATE ${PROJECT_SOURCE_DIR})
target_include_directories(fox_xgrammar SYSTEM PUBLIC
  ${source}/include ${source}/cpp ${source}/3rdparty/picojson ${source}/3rdparty/dlpack/include)
target_compile_definitions(fox_xgrammar PUBLIC
  XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0 XGRAMMAR_LOG_CUSTOMIZE=1)
target_compile_options(fox_xgrammar
  PRIVATE -w "SHELL:-include ${CMAKE_CURRENT_SOURCE_DIR}/json_pattern.h"
          "SHELL:-include ${CMAKE_CURRENT_SOURCE_DIR}/utf8_ranges.h"
  PUBLIC "SHELL:-include ${CMAKE_CURRENT_SOURCE_DIR}/work_meter.h")
set_target_properties(fox_xgrammar PROPERTIES CXX_CLANG_TIDY "" UNITY_BUILD OFF)
