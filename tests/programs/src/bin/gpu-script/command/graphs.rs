//! Graphs and their memory nodes. Each node of a graph depends on the one before it.

use super::{Answer, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};
use crate::process;

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let name = words.name();
    Ok(Some(match name {
        "graph" => scope.keep(words.at(1)?, driver.get("cuGraphCreate", &[0])),
        "alloc-node" | "alloc-node-v1" => {
            // CUgraphNodeParams: the type, and CUDA_MEM_ALLOC_NODE_PARAMS from byte 16 on.
            let mut params = [0u64; 32];
            let gpu = words.gpu(4)? as u64;
            (params[0], params[2]) = (10, 1);
            (params[3], params[15]) = (1 | gpu << 32, words.size(3)? as u64);
            let (function, start) = match name {
                "alloc-node" => ("cuGraphAddMemAllocNode", 2),
                _ => ("cuGraphAddNode", 0),
            };
            let place = params[start..].as_mut_ptr() as usize;
            let status = node(driver, scope, words.at(2)?, function, &[place])?;
            scope.keep(words.at(1)?, (status, params[16]))
        }
        "free-node" => {
            let address = scope.value(words.at(2)?)?;
            let function = "cuGraphAddMemFreeNode";
            plain(node(driver, scope, words.at(1)?, function, &[address])?)
        }
        "empty-node" => plain(node(
            driver,
            scope,
            words.at(1)?,
            "cuGraphAddEmptyNode",
            &[],
        )?),
        "child-node" => {
            // CUDA_CHILD_GRAPH_NODE_PARAMS: the graph, and the flag that the node owns it.
            let mut params = [0u64; 32];
            (params[0], params[2], params[3]) = (4, scope.value(words.at(2)?)? as u64, 1);
            let place = params.as_mut_ptr() as usize;
            let function = "cuGraphAddNode";
            plain(node(driver, scope, words.at(1)?, function, &[place])?)
        }
        "conditional-node" => {
            let (function, graph) = (words.at(1)?, scope.value(words.at(2)?)?);
            let names: Vec<&str> = (3..).map_while(|at| words.get(at)).collect();
            let (_, context) = driver.get("cuCtxGetCurrent", &[]);
            let arguments = [graph, context as usize, 1, 1];
            let (_, handle) = driver.get("cuGraphConditionalHandleCreate", &arguments);
            // CUDA_CONDITIONAL_NODE_PARAMS: the handle, a switch of this many bodies, their place,
            // the context.
            let mut params = [0u64; 32];
            (params[0], params[2], params[5]) = (13, handle, context);
            params[3] = 2 | (names.len() as u64) << 32;
            let place = params.as_mut_ptr() as usize;
            let arguments = match function {
                "cuGraphAddNode" => vec![graph, 0, 0, place],
                _ => vec![graph, 0, 0, 0, place],
            };
            let (status, _) = driver.get(function, &arguments);
            if status == 0 {
                let graphs = process::words_at(params[4] as usize, names.len());
                let named = names.iter().map(|name| (*name).to_owned());
                scope.values.extend(named.zip(graphs));
            }
            plain(status)
        }
        "instantiate" => {
            let (graph, flags) = (scope.value(words.at(2)?)?, words.get(3).unwrap_or("0"));
            let flags = flags.parse::<usize>().map_err(|_| "no flags")?;
            let answer = driver.get("cuGraphInstantiateWithFlags", &[graph, flags]);
            scope.keep(words.at(1)?, answer)
        }
        "instantiate-nowhere" => {
            let graph = scope.value(words.at(1)?)?;
            plain(driver.call("cuGraphInstantiateWithFlags", &[0, graph, 0]))
        }
        "instantiate-v1" | "instantiate-v2" => {
            let function = match name {
                "instantiate-v1" => "cuGraphInstantiate",
                _ => "cuGraphInstantiate_v2",
            };
            let graph = scope.value(words.at(2)?)?;
            scope.keep(words.at(1)?, driver.get(function, &[graph, 0, 0, 0]))
        }
        "instantiate-upload" => {
            let (graph, stream) = (scope.value(words.at(2)?)?, scope.stream(words.get(3))?);
            let mut params = [2, stream as u64, 0, 0];
            let place = params.as_mut_ptr() as usize;
            let answer = driver.get("cuGraphInstantiateWithParams", &[graph, place]);
            scope.keep(words.at(1)?, answer)
        }
        "upload-graph" | "launch-graph" => {
            let function = match name {
                "upload-graph" => "cuGraphUpload",
                _ => "cuGraphLaunch",
            };
            let (exec, stream) = (scope.value(words.at(1)?)?, scope.stream(words.get(2))?);
            plain(driver.call(function, &[exec, stream]))
        }
        "destroy-exec" => plain(driver.call("cuGraphExecDestroy", &[scope.value(words.at(1)?)?])),
        "destroy-graph" => plain(driver.call("cuGraphDestroy", &[scope.value(words.at(1)?)?])),
        "trim-graphs" => plain(driver.call("cuDeviceGraphMemTrim", &[words.gpu(1)?])),
        _ => return Ok(None),
    }))
}

/// Adds a node after the last one of a graph.
fn node(
    driver: &Driver,
    scope: &mut Scope,
    graph: &str,
    function: &str,
    rest: &[usize],
) -> Answer<i32> {
    let last = format!("{graph}'s last node");
    let after = scope.values.get(&last).copied();
    let list = after.as_ref().map_or(0, |node| &raw const *node as usize);
    let mut arguments = vec![scope.value(graph)?, list, usize::from(after.is_some())];
    arguments.extend(rest);
    let (status, node) = driver.get(function, &arguments);
    if status == 0 {
        scope.values.insert(last, node);
    }
    Ok(status)
}
