# fox_source_package(name version sha256 out patches...): the folder of a source distribution on
# PyPI, checked by hash, patched and kept in the build tree; an empty string where pip gives none.
function(fox_source_package name version sha256 out)
  set(${out} "" PARENT_SCOPE)
  set(folder ${CMAKE_BINARY_DIR}/_deps/${name})
  set(unpacked ${folder}/${name}-${version})
  set(hashes ${sha256})
  foreach(patch ${ARGN})
    file(SHA256 ${patch} hash)
    string(APPEND hashes ${hash})
  endforeach()
  string(SHA256 state "${hashes}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
  if(NOT EXISTS ${unpacked}/unpacked-${state})
    set(archive ${unpacked}.tar.gz)
    file(MAKE_DIRECTORY ${folder})
    find_package(Python3 COMPONENTS Interpreter QUIET)
    if(NOT EXISTS ${archive} AND Python3_FOUND)
      message(STATUS "Fetching ${name} ${version} with pip")
      # Not `--no-binary :all:`: pip would then compile its own build tools from source, too. It
      # also prepares the package's metadata; a failure there may still leave the archive.
      execute_process(
        COMMAND ${Python3_EXECUTABLE} -m pip download --quiet --no-deps --no-binary ${name}
                --dest ${folder} ${name}==${version}
        RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT 300)
    endif()
    if(NOT EXISTS ${archive})
      message(STATUS "pip gave no archive of ${name} (${result})")
      return()
    endif()
    file(SHA256 ${archive} hash)
    if(NOT hash STREQUAL sha256)
      file(REMOVE ${archive})
      message(FATAL_ERROR "The archive of ${name} has SHA-256 ${hash}, expected ${sha256}")
    endif()
    file(REMOVE_RECURSE ${unpacked})
    file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${folder} TOUCH)
    find_package(Git REQUIRED)
    foreach(patch ${ARGN})
      # Outside of any repository: inside one, git skips files that it ignores.
      execute_process(
        COMMAND ${CMAKE_COMMAND} -E env GIT_CEILING_DIRECTORIES=${folder} ${GIT_EXECUTABLE} apply
                ${patch}
        WORKING_DIRECTORY ${unpacked} RESULT_VARIABLE result ERROR_VARIABLE output)
      if(result)
        message(FATAL_ERROR "${patch} does not apply to ${name} ${version}: ${output}")
      endif()
    endforeach()
    file(TOUCH ${unpacked}/unpacked-${state})
  endif()
  set(${out} ${unpacked} PARENT_SCOPE)
endfunction()
