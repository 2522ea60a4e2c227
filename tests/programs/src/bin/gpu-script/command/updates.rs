//! Executable graphs whose kernels are changed.

use super::{Answer, kernels, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};

/// `CUgraphNodeType`.
const KERNEL: u64 = 0;
const CHILD: u64 = 4;

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let name = words.name();
    Ok(Some(match name {
        "update" | "update-v1" => {
            let (exec, graph) = (scope.value(words.at(1)?)?, scope.value(words.at(2)?)?);
            let (mut node, mut result) = ([0u64; 3], 0i32);
            let places = [&raw mut node as usize, &raw mut result as usize];
            plain(match name {
                "update" => driver.call("cuGraphExecUpdate_v2", &[exec, graph, places[0]]),
                _ => driver.call("cuGraphExecUpdate", &[exec, graph, places[0], places[1]]),
            })
        }
        "set-kernel" | "set-kernel-v1" | "set-kernel-node" | "set-kernel-of" => {
            let (exec, node) = place(driver, scope, words)?;
            // CUgraphNodeParams: the type, and CUDA_KERNEL_NODE_PARAMS from byte 16 on: the
            // function, grid and block, and the kernel at byte 56.
            let mut params = [0u64; 32];
            params[0] = KERNEL;
            params[3..6].fill(1 << 32 | 1);
            match name {
                "set-kernel-of" => params[9] = kernels::kernel(driver, scope, words.at(4)?)? as u64,
                _ => params[2] = kernels::function(driver, scope, words.at(4)?)? as u64,
            }
            let (function, start) = match name {
                "set-kernel-v1" => ("cuGraphExecKernelNodeSetParams", 2),
                "set-kernel-node" => ("cuGraphExecNodeSetParams", 0),
                _ => ("cuGraphExecKernelNodeSetParams_v2", 2),
            };
            let params = params[start..].as_ptr() as usize;
            plain(driver.call(function, &[exec, node, params]))
        }
        "set-child" | "set-child-node" => {
            let (exec, node) = place(driver, scope, words)?;
            let child = scope.value(words.at(4)?)?;
            let mut params = [0u64; 32];
            (params[0], params[2]) = (CHILD, child as u64);
            plain(match name {
                "set-child" => {
                    driver.call("cuGraphExecChildGraphNodeSetParams", &[exec, node, child])
                }
                _ => {
                    let params = params.as_ptr() as usize;
                    driver.call("cuGraphExecNodeSetParams", &[exec, node, params])
                }
            })
        }
        "set-nothing" => {
            let (exec, node) = place(driver, scope, words)?;
            let functions = [
                "cuGraphExecKernelNodeSetParams",
                "cuGraphExecKernelNodeSetParams_v2",
                "cuGraphExecNodeSetParams",
                "cuGraphExecChildGraphNodeSetParams",
            ];
            let answers = functions.map(|function| plain(driver.call(function, &[exec, node, 0])));
            answers.join(" ")
        }
        _ => return Ok(None),
    }))
}

/// Returns an executable graph, and a node of its graph by the node's number.
fn place(driver: &Driver, scope: &Scope, words: &Words<'_>) -> Answer<(usize, usize)> {
    let (exec, graph) = (scope.value(words.at(1)?)?, scope.value(words.at(2)?)?);
    let number = words.size(3)?;
    let (mut nodes, mut count) = ([0usize; 64], 64usize);
    let places = [&raw mut nodes as usize, &raw mut count as usize];
    match driver.call("cuGraphGetNodes", &[graph, places[0], places[1]]) {
        0 if number < count => Ok((exec, nodes[number])),
        status => Err(format!("no node {number}: {status}, {count}")),
    }
}
