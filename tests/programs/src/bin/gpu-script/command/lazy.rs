//! Calls that load code which is not loaded yet.

use super::{Answer, kernels, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    Ok(Some(match words.name() {
        "ask" => {
            let kernel = kernels::kernel(driver, scope, words.at(2)?)?;
            ask(driver, words.at(1)?, kernel)?
        }
        "ask-listed" => {
            let function = listed(driver, scope, words.at(2)?)?;
            ask(driver, words.at(1)?, function)?
        }
        "ask-nothing" => ask(driver, words.at(1)?, 0)?,
        "kernel-node" => {
            let kernel = kernels::kernel(driver, scope, words.at(3)?)?;
            let context = words.get(4).map_or(Ok(0), |context| scope.value(context))?;
            node(driver, scope, words, [0, kernel, context])?
        }
        "listed-node" => {
            let function = listed(driver, scope, words.at(3)?)?;
            node(driver, scope, words, [function, 0, 0])?
        }
        _ => return Ok(None),
    }))
}

/// Returns the kernel of a module without loading it.
fn listed(driver: &Driver, scope: &Scope, module: &str) -> Answer<usize> {
    let mut function = 0usize;
    let arguments = [&raw mut function as usize, 1, scope.value(module)?];
    match driver.call("cuModuleEnumerateFunctions", &arguments) {
        0 => Ok(function),
        failed => Err(format!("no function in {module}: {failed}")),
    }
}

/// Calls a function that queries a function or kernel, or sets one of its attributes.
fn ask(driver: &Driver, function: &str, handle: usize) -> Answer<String> {
    let mut answers = [0u64; 2];
    let [first, second] = [0, 1].map(|at| &raw mut answers[at] as usize);
    // `CUlaunchConfig`: seven 32-bit numbers, the stream at byte 32, then attributes.
    let config = [1u64 << 32 | 1, 1 << 32 | 1, 1 << 32 | 1, 0, 0, 0, 0, 0];
    let config = config.as_ptr() as usize;
    let arguments: &[usize] = match function {
        "cuOccupancyMaxActiveBlocksPerMultiprocessor" => &[first, handle, 32, 0],
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" => &[first, handle, 32, 0, 0],
        "cuOccupancyMaxPotentialBlockSize" => &[first, second, handle, 0, 0, 0],
        "cuOccupancyMaxPotentialBlockSizeWithFlags" => &[first, second, handle, 0, 0, 0, 0],
        "cuOccupancyAvailableDynamicSMemPerBlock" => &[first, handle, 1, 32],
        "cuOccupancyMaxPotentialClusterSize" | "cuOccupancyMaxActiveClusters" => {
            &[first, handle, config]
        }
        // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        "cuKernelSetAttribute" => &[8, 1024, handle, 0],
        "cuFuncSetAttribute" => &[handle, 8, 1024],
        "cuKernelSetCacheConfig" => &[handle, 1, 0],
        "cuFuncSetCacheConfig" | "cuFuncSetSharedMemConfig" => &[handle, 1],
        "cuKernelGetParamInfo" => &[handle, 0, first, second],
        "cuKernelGetParamCount" => &[handle, first],
        "cuFuncLoad" => &[handle],
        other => return Err(format!("no arguments for {other}")),
    };
    Ok(plain(driver.call(function, arguments)))
}

/// Adds a node with this function, kernel and context to a graph, or puts them into its first node.
fn node(
    driver: &Driver,
    scope: &Scope,
    words: &Words<'_>,
    [kernel_function, kernel, context]: [usize; 3],
) -> Answer<String> {
    let (function, graph) = (words.at(1)?, scope.value(words.at(2)?)?);
    // CUgraphNodeParams: the type, and CUDA_KERNEL_NODE_PARAMS from byte 16 on: the function, grid
    // and block, the kernel at byte 56 and the context.
    let mut params = [0u64; 32];
    params[3..6].fill(1 << 32 | 1);
    (params[2], params[9], params[10]) = (kernel_function as u64, kernel as u64, context as u64);
    let [any, of_kernel] = [0, 2].map(|start: usize| params[start..].as_ptr() as usize);
    let (mut first, mut count) = (0usize, 1usize);
    let places = [&raw mut first as usize, &raw mut count as usize];
    driver.call("cuGraphGetNodes", &[graph, places[0], places[1]]);
    Ok(plain(match function {
        "cuGraphAddKernelNode" | "cuGraphAddKernelNode_v2" => {
            driver.get(function, &[graph, 0, 0, of_kernel]).0
        }
        "cuGraphAddNode" => driver.get(function, &[graph, 0, 0, any]).0,
        "cuGraphAddNode_v2" | "cuGraphAddNode_v3" => driver.get(function, &[graph, 0, 0, 0, any]).0,
        "cuGraphKernelNodeSetParams" | "cuGraphKernelNodeSetParams_v2" => {
            driver.call(function, &[first, of_kernel])
        }
        "cuGraphNodeSetParams" | "cuGraphNodeSetParams_v2" => driver.call(function, &[first, any]),
        other => return Err(format!("no arguments for {other}")),
    }))
}
