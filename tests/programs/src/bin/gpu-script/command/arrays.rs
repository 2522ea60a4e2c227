//! Arrays and mipmapped arrays.

use super::{Answer, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};
use crate::size;

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let name = words.name();
    Ok(Some(match name {
        "array" => {
            let shape = Shape::parse(words.at(2)?)?;
            scope.keep(words.at(1)?, shape.create(driver, words.get(3)))
        }
        "mipmap" => {
            let (shape, levels) = (Shape::parse(words.at(2)?)?.wide(), words.size(3)?);
            let answer = driver.get("cuMipmappedArrayCreate", &[shape.as_ptr() as usize, levels]);
            scope.keep(words.at(1)?, answer)
        }
        "array-nowhere" => {
            let shape = Shape::parse(words.at(1)?)?.wide();
            plain(driver.call("cuArray3DCreate_v2", &[0, shape.as_ptr() as usize]))
        }
        "array-of-nothing" => plain(driver.get("cuArray3DCreate_v2", &[0]).0),
        "level" => {
            let arguments = [scope.value(words.at(2)?)?, words.size(3)?];
            scope.keep(
                words.at(1)?,
                driver.get("cuMipmappedArrayGetLevel", &arguments),
            )
        }
        "destroy-array" => plain(driver.call("cuArrayDestroy", &[scope.value(words.at(1)?)?])),
        "destroy-mipmap" => {
            plain(driver.call("cuMipmappedArrayDestroy", &[scope.value(words.at(1)?)?]))
        }
        "many-arrays" | "fill-arrays" => {
            let (count, shape) = match name {
                "many-arrays" => (words.size(2)?, words.at(3)?),
                _ => (usize::MAX, words.at(2)?),
            };
            let shape = Shape::parse(shape)?;
            let list = scope.lists.entry(words.at(1)?.to_owned()).or_default();
            let (mut status, mut made) = (0, 0);
            while status == 0 && made < count {
                let (answer, array) = shape.create(driver, None);
                status = answer;
                if status == 0 {
                    list.push(array);
                    made += 1;
                }
            }
            format!("{} {made}", plain(status))
        }
        "destroy-arrays" => {
            let list = scope.lists.remove(words.at(1)?).unwrap_or_default();
            let failed = list
                .into_iter()
                .map(|array| driver.call("cuArrayDestroy", &[array as usize]))
                .find(|status| *status != 0);
            plain(failed.unwrap_or(0))
        }
        "map-tiles" => {
            let (x, width) = (words.size(2)? as u64, words.size(3)? as u64);
            // The words are level and layer; x and y; z and width; height and depth. Height and
            // width of a tile of sixteen-byte elements are 64.
            let part = [0, x, width << 32, 64 | 1 << 32];
            map(driver, scope, words, 0, part)?
        }
        "map-whole" => {
            let part = [0, 0, words.size(2)? as u64, 0];
            map(driver, scope, words, 1, part)?
        }
        _ => return Ok(None),
    }))
}

/// Calls `cuMemMapArrayAsync` for one part: a level of an array (0) or the tail of a mipmapped
/// array (1).
fn map(
    driver: &Driver,
    scope: &Scope,
    words: &Words<'_>,
    kind: u64,
    part: [u64; 4],
) -> Answer<String> {
    let place = if kind == 0 { 4 } else { 3 };
    let (operation, memory) = match words.at(place)? {
        "none" => (2, 0),
        name => (1, scope.value(name)? as u64),
    };
    let array = scope.value(words.at(1)?)? as u64;
    let [one, two, three, four] = part;
    let info: [u64; 12] = [
        kind, array, kind, one, two, three, four, operation, memory, 0, 1, 0,
    ];
    let arguments = [info.as_ptr() as usize, 1, 0];
    Ok(plain(driver.call("cuMemMapArrayAsync", &arguments)))
}

/// The parameters of an array.
struct Shape {
    /// Width, height and depth.
    sizes: [u64; 3],
    /// Format, channels and flags.
    words: [u32; 3],
}

impl Shape {
    fn parse(text: &str) -> Answer<Shape> {
        let mut numbers = [0, 0, 0, 32, 4, 0];
        for (number, part) in numbers.iter_mut().zip(text.split(',')) {
            *number = size::parse(part)?;
        }
        let [width, height, depth, words @ ..] = numbers;
        Ok(Shape {
            sizes: [width, height, depth],
            words: words.map(|word| word as u32),
        })
    }

    /// Returns the `CUDA_ARRAY3D_DESCRIPTOR`.
    fn wide(&self) -> [u64; 5] {
        let [width, height, depth] = self.sizes;
        let [format, channels, flags] = self.words.map(u64::from);
        [width, height, depth, format | channels << 32, flags]
    }

    /// Creates an array through either function.
    fn create(&self, driver: &Driver, through: Option<&str>) -> (i32, u64) {
        let wide = self.wide();
        let flat = [wide[0], wide[1], wide[3]];
        let (function, place) = match through {
            Some("2d") => ("cuArrayCreate_v2", flat.as_ptr() as usize),
            _ => ("cuArray3DCreate_v2", wide.as_ptr() as usize),
        };
        driver.get(function, &[place])
    }
}
