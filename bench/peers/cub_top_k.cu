// The top k of the rows of a matrix by CUB. `top_k_kernels.py` compiles this with the headers of cuda-cccl, and defines
// the type BENCH_KEY, the bounds BENCH_MOST of the elements of a row and BENCH_MOST_K of k, and BENCH_SORTED: in order of
// value with the smaller indices of equal elements, or else any of the largest in any order.
#define CUB_DISABLE_TOPK_UNSUPPORTED_ARCH_ASSERT  // errors at run time instead
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cub/device/device_batched_topk.cuh>
#include <cuda/argument>
#include <cuda/iterator>

namespace execution = cuda::execution;

extern "C" int top_k(void* workspace, size_t* bytes, const BENCH_KEY* x, BENCH_KEY* values, int* indices, int64_t rows, int64_t size,
                     int64_t k, cudaStream_t stream) {
#if BENCH_SORTED
  auto requirements = execution::require(execution::determinism::gpu_to_gpu, execution::tie_break::prefer_smaller_index,
                                         execution::output_ordering::sorted);
#else
  auto requirements = execution::require(execution::determinism::not_guaranteed, execution::tie_break::unspecified,
                                         execution::output_ordering::unsorted);
#endif
  auto rows_of = [](auto elements, int64_t stride) {
    return cuda::make_strided_iterator(cuda::make_counting_iterator(elements), stride);
  };
  return cub::DeviceBatchedTopK::MaxPairs(
      workspace, *bytes, rows_of(x, size), rows_of(values, k),
      cuda::make_constant_iterator(cuda::make_counting_iterator(0)), rows_of(indices, k),
      cuda::args::immediate{size, cuda::args::bounds<int64_t{1}, int64_t{BENCH_MOST}>()},
      cuda::args::immediate{k, cuda::args::bounds<int64_t{1}, int64_t{BENCH_MOST_K}>()}, cuda::args::immediate{rows},
      cuda::std::execution::env{requirements, cuda::stream_ref{stream}});
}
