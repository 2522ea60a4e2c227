//! The limits that an environment variable asks for, before the process knows its GPUs.

use super::error::PolicyError;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::{Extent, Size, SizeError};
use gpulimit_limits::{Capacity, Key, LimitSet, Selector};

/// The GPUs that a requested limit is for, as a user writes them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RequestSelector {
    /// All GPUs without a limit of their own in the variable.
    All,
    /// A GPU, by its CUDA ordinal in this process.
    Ordinal(u32),
    /// A GPU, by its UUID or the beginning of its UUID.
    Prefix(String),
}

impl RequestSelector {
    /// Parses `all`, a CUDA ordinal, or the beginning of a UUID such as `GPU-…` or `MIG-…`.
    pub fn parse(text: &str) -> Option<Self> {
        let uuid = || {
            let start = text.get(..4)?;
            let kind = start.eq_ignore_ascii_case("GPU-") || start.eq_ignore_ascii_case("MIG-");
            let rest = text[4..]
                .bytes()
                .all(|c| c.is_ascii_hexdigit() || c == b'-');
            (kind && rest && text.len() > 4).then(|| Self::Prefix(text.into()))
        };
        if text.eq_ignore_ascii_case("all") {
            Some(Self::All)
        } else if !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit()) {
            text.parse().ok().map(Self::Ordinal)
        } else {
            uuid()
        }
    }

    fn matches(&self, ordinal: u32, id: DeviceId) -> bool {
        match self {
            Self::All => true,
            Self::Ordinal(wanted) => *wanted == ordinal,
            Self::Prefix(prefix) => id.matches(prefix),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::All => "all".into(),
            Self::Ordinal(ordinal) => ordinal.to_string(),
            Self::Prefix(prefix) => prefix.clone(),
        }
    }
}

/// The limits that an environment variable asks for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LimitRequest {
    /// The sizes that the variable asks for, each with the GPUs that it is for.
    pub rules: Vec<(RequestSelector, Extent)>,
    /// The name of the variable.
    pub variable: String,
    /// Whether limits for GPUs that this process does not see are ignored, as in variables of other
    /// tools.
    pub lenient: bool,
}

impl LimitRequest {
    /// Turns the request into limits for these GPUs with their CUDA ordinals. `capacity` returns a
    /// GPU's memory in bytes.
    pub fn resolve(
        &self,
        gpus: &[(u32, DeviceId)],
        capacity: &dyn Fn(u32) -> Option<u64>,
    ) -> Result<LimitSet, PolicyError> {
        let mut set = LimitSet::default();
        let capacities: Vec<Capacity> = match self.depends_on_capacity() {
            true => gpus.iter().map(|(n, id)| (*id, capacity(*n))).collect(),
            false => Vec::new(),
        };
        // Set the limits for single GPUs last, because the limit for all GPUs can add rules for
        // single GPUs.
        let mut named: Vec<Selector> = Vec::new();
        let rules = |spread: bool| {
            let rules = self.rules.iter();
            rules.filter(move |(selector, _)| (*selector == RequestSelector::All) == spread)
        };
        let mut unknown = None;
        for (selector, extent) in rules(true).chain(rules(false)) {
            let target = match selector {
                RequestSelector::All => Selector::All,
                selector => {
                    let fits = gpus
                        .iter()
                        .filter(|(ordinal, id)| selector.matches(*ordinal, *id));
                    let found: Vec<_> = fits.copied().collect();
                    match found[..] {
                        [(_, id)] => Selector::Device(id),
                        [] => {
                            unknown = Some(selector);
                            continue;
                        }
                        _ => return Err(self.ambiguous(selector, found)),
                    }
                }
            };
            if named.contains(&target) {
                let again = gpus
                    .iter()
                    .filter(|(_, id)| target == Selector::Device(*id));
                return Err(self.ambiguous(selector, again.copied().collect()));
            }
            named.push(target);
            // Ask for a rule for each GPU, because another process of the job may see other GPUs.
            set.set_extent(target, Key::Max, *extent, &capacities, true)
                .map_err(|error| PolicyError::Variable(format!("{}: {error}", self.variable)))?;
        }
        match unknown {
            Some(selector) if !self.lenient || set.rules.is_empty() => {
                Err(PolicyError::Variable(format!(
                    "{} has a limit for GPU '{}', which this process does not see; visible GPUs{}",
                    self.variable,
                    selector.text().escape_debug(),
                    seen(gpus)
                )))
            }
            _ => Ok(set),
        }
    }

    /// Returns the bytes of one GPU that the request allows; `None` if the request has no limit for
    /// the GPU, or none that is known without the GPU's CUDA ordinal.
    pub(super) fn outlook(
        &self,
        gpu: DeviceId,
        ordinal: Option<u32>,
        capacity: u64,
    ) -> Option<u64> {
        let mut selectors = self.rules.iter().map(|(selector, _)| selector);
        if ordinal.is_none() && selectors.any(|it| matches!(it, RequestSelector::Ordinal(_))) {
            return None;
        }
        // The limits for other GPUs are checked when the process joins.
        let lenient = Self {
            lenient: true,
            ..self.clone()
        };
        let gpus = [(ordinal.unwrap_or(0), gpu)];
        let limits = lenient.resolve(&gpus, &|_| Some(capacity)).ok()?;
        let max = limits.for_device(gpu, Key::Max)?;
        Some(max.resolve(capacity))
    }

    /// Returns whether [`Self::resolve`] needs to know the GPUs of this process.
    pub fn needs_gpus(&self) -> bool {
        let mut selectors = self.rules.iter().map(|(selector, _)| selector);
        selectors.any(|selector| *selector != RequestSelector::All) || self.depends_on_capacity()
    }

    /// Returns whether the request contains a size of the form "all but N bytes".
    fn depends_on_capacity(&self) -> bool {
        let mut extents = self.rules.iter().map(|(_, extent)| extent);
        extents.any(|extent| matches!(extent, Extent::AllBut(_)))
    }

    fn ambiguous(&self, gpu: &RequestSelector, matches: Vec<(u32, DeviceId)>) -> PolicyError {
        let (variable, gpu) = (&self.variable, gpu.text());
        PolicyError::Variable(format!(
            "{variable}: '{}' fits several GPUs, or a GPU for which {variable} already has a \
             limit{}",
            gpu.escape_debug(),
            seen(&matches)
        ))
    }
}

/// Formats the GPUs that a message lists, each with its CUDA ordinal.
fn seen(gpus: &[(u32, DeviceId)]) -> String {
    let gpu = |(ordinal, id): &(u32, DeviceId)| format!("{ordinal} = {id}");
    match gpus.iter().map(gpu).collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => ": none".into(),
        some => format!(": {some}"),
    }
}

/// Parses the value of `GPULIMIT_MAX`: a size for all GPUs, or `GPU=SIZE` for some GPUs, separated
/// by commas.
pub(super) fn list(text: &str) -> Result<Vec<(RequestSelector, Extent)>, String> {
    let mut rules: Vec<(RequestSelector, Extent)> = Vec::new();
    for part in text.split(',') {
        let (selector, size) = match part.split_once('=') {
            None => (RequestSelector::All, part),
            Some((selector, size)) => {
                let selector = RequestSelector::parse(selector.trim()).ok_or(LIST)?;
                (selector, size)
            }
        };
        add(&mut rules, selector, size.parse().map_err(said)?)?;
    }
    Ok(rules)
}

fn add(
    rules: &mut Vec<(RequestSelector, Extent)>,
    selector: RequestSelector,
    size: Extent,
) -> Result<(), String> {
    if rules.iter().any(|(there, _)| *there == selector) {
        return Err("expected one size for each GPU".into());
    }
    rules.push((selector, size));
    Ok(())
}

fn said(error: SizeError) -> String {
    error.to_string()
}

const LIST: &str = "expected a size such as 4G, or GPU=SIZE separated by commas, where GPU is a \
                    CUDA ordinal, a GPU-… UUID or its beginning, or all";

/// Parses the value of `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`: `0=2G,1=512M`.
pub(super) fn mps(text: &str) -> Result<Vec<(RequestSelector, Extent)>, String> {
    const FORM: &str =
        "expected ORDINAL=SIZE separated by commas, each size with its unit, such as 0=2G,1=512M";
    let mut rules: Vec<(RequestSelector, Extent)> = Vec::new();
    for part in text.split(',') {
        let (ordinal, size) = part.split_once('=').ok_or(FORM)?;
        let selector = match RequestSelector::parse(ordinal.trim()) {
            Some(selector @ RequestSelector::Ordinal(_)) => selector,
            _ => return Err(FORM.into()),
        };
        if !size.trim_end().ends_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(FORM.into());
        }
        let size: Size = size.parse().map_err(said)?;
        add(&mut rules, selector, size.into())?;
    }
    Ok(rules)
}

/// Parses the value of `NVIDIA_GPU_MEMORY_LIMIT`: whole MiB.
pub(super) fn mebibytes(text: &str) -> Result<Size, String> {
    let digits = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let bytes = digits
        .then(|| text.parse::<u64>().ok())
        .flatten()
        .and_then(|mebibytes| mebibytes.checked_mul(1 << 20));
    bytes
        .map(Size::Bytes)
        .ok_or_else(|| "expected a whole number of MiB, such as 4096".into())
}

/// Parses the value of `CUDA_DEVICE_MEMORY_LIMIT` and its numbered forms: a size, where 0 means no
/// limit.
pub(super) fn or_zero(text: &str) -> Result<Option<Size>, String> {
    match text.parse().map_err(said)? {
        Size::Bytes(0) => Ok(None),
        size => Ok(Some(size)),
    }
}
