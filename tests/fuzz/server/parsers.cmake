# The parsers of server/ and the parts of engine/ that they need, for the preset fuzz. The target
# has the name of the library that has them in other presets. gRPC, which takes long to compile, is
# left out.
find_package(OpenSSL 3.0 REQUIRED)
find_package(Protobuf REQUIRED)
find_path(FOX_BOOST_INCLUDE_DIR boost/beast/http/parser.hpp REQUIRED)

set(messages ${CMAKE_CURRENT_BINARY_DIR}/messages)
file(MAKE_DIRECTORY ${messages})
set(proto ${CMAKE_SOURCE_DIR}/proto)
set(generated "")
foreach(name fox/v1/acp fox/v1/inference)
  add_custom_command(
    OUTPUT ${messages}/${name}.pb.cc ${messages}/${name}.pb.h
    COMMAND protobuf::protoc -I ${proto} --cpp_out=${messages} ${name}.proto
    DEPENDS ${proto}/${name}.proto
    VERBATIM)
  list(APPEND generated ${messages}/${name}.pb.cc ${messages}/${name}.pb.h)
endforeach()
add_library(fox_proto STATIC ${generated})
target_include_directories(fox_proto SYSTEM PUBLIC ${messages})
target_link_libraries(fox_proto PUBLIC protobuf::libprotobuf)

set(server ${CMAKE_SOURCE_DIR}/server)
add_library(fox_server STATIC
  ${server}/calls/conversion/request_conversion.cc ${server}/calls/conversion/sampling_defaults.cc
  ${server}/calls/access/trace_context.cc ${server}/http/openai/completion_request.cc
  ${server}/http/port/http_error.cc ${server}/http/port/http_message.cc
  ${server}/http/port/http_parser.cc ${server}/http/openai/json_fields.cc
  ${server}/process/connection_acceptor.cc ${server}/process/line_writer.cc
  ${server}/process/log.cc ${server}/process/random_id.cc ${server}/server_flags.cc
  ${CMAKE_SOURCE_DIR}/engine/request/request_validation.cc
  ${CMAKE_SOURCE_DIR}/engine/request/sampling_limits.cc)
target_link_libraries(fox_server
  PUBLIC fox_options fox_proto fox_tokenizer fox_checkpoint fox_flags
  PRIVATE absl::strings absl::cleanup nlohmann_json::nlohmann_json OpenSSL::Crypto)
target_include_directories(fox_server SYSTEM PRIVATE ${FOX_BOOST_INCLUDE_DIR})
