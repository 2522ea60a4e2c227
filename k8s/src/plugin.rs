//! The device plugin service that kubelet calls.

use crate::allocations::{Allocations, Grant};
use crate::api::device_plugin_server::DevicePlugin;
use crate::api::{
    self, AllocateRequest, AllocateResponse, CdiDevice, Device, DeviceList, Edits, Empty, Mount,
    Options as Wishes, PreStartRequest, PreferenceRequest, PreferenceResponse, Units,
};
use crate::cards::Card;
use crate::library::{INSIDE, PRELOAD};
use crate::options::{Gpus, Options};
use crate::units::{Share, Unit, Wrong, prefer};
use gpulimit_base::device::DeviceId;
use gpulimit_group::SYSTEM;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

/// The most units that a node can have: with more units, kubelet's messages would be too long.
const MOST_UNITS: u64 = 20_000;

/// The longest error message to kubelet, in characters.
const LONGEST_REFUSAL: usize = 1_000;

/// The plugin's options: which optional calls kubelet should make.
pub const WISHES: Wishes = Wishes {
    pre_start_required: false,
    preference_available: true,
};

/// The device plugin service with its allocations.
pub struct Plugin {
    options: Arc<Options>,
    /// The directory of libgpulimit.so on the node.
    library: PathBuf,
    /// The number of units that each card has.
    units: BTreeMap<DeviceId, u32>,
    allocations: Mutex<Allocations>,
    /// The list of units for kubelet. The value is always `Ok`; tonic's streams require a `Result`.
    list: watch::Sender<Result<DeviceList, Status>>,
}

impl Plugin {
    /// Makes the service for the memory of these cards.
    pub fn new(
        options: Arc<Options>,
        cards: &[Card],
        allocations: Allocations,
        library: PathBuf,
    ) -> Result<Self, String> {
        let (unit, reserve) = (options.unit, options.reserve);
        let count = |card: &Card| card.memory.saturating_sub(reserve) / unit.max(1);
        let all = cards.iter().map(count).fold(0, u64::saturating_add);
        if unit == 0 || all > MOST_UNITS {
            return Err(format!(
                "units of {unit} bytes are too many for these GPUs (at most {MOST_UNITS}): choose \
                 a larger --unit"
            ));
        }
        if all == 0 {
            return Err(format!(
                "no GPU has room for a unit of {unit} bytes: choose a smaller --unit or --reserve"
            ));
        }
        let units = cards.iter().map(|card| {
            // The number of a card's units fits into 32 bits, because all units together are at
            // most [`MOST_UNITS`].
            (card.id, count(card) as u32)
        });
        let plugin = Self {
            options,
            library,
            units: units.collect(),
            allocations: Mutex::new(allocations),
            list: watch::Sender::new(Ok(DeviceList::default())),
        };
        plugin.show(cards);
        Ok(plugin)
    }

    /// Returns the number of units of each card.
    pub fn units(&self) -> impl Iterator<Item = (DeviceId, u32)> + '_ {
        self.units.iter().map(|(card, count)| (*card, *count))
    }

    /// Sends kubelet the list of units, with the health of their cards.
    pub fn show(&self, cards: &[Card]) {
        let devices = cards.iter().flat_map(|card| {
            let health = match card.healthy {
                true => api::HEALTHY,
                false => api::UNHEALTHY,
            };
            let count = self.units.get(&card.id).copied().unwrap_or(0);
            (0..count).map(move |number| Device {
                id: Unit {
                    card: card.id,
                    number,
                }
                .to_string(),
                health: health.into(),
            })
        });
        let devices = devices.collect();
        drop(self.list.send_replace(Ok(DeviceList { devices })));
    }

    /// Returns whether kubelet is listening to the list of units. Kubelet listens while the plugin
    /// is registered.
    pub fn is_watched(&self) -> bool {
        self.list.receiver_count() > 0
    }

    fn preference(&self, request: &PreferenceRequest) -> Result<PreferenceResponse, Status> {
        let units = |choice| {
            let units = prefer(choice).map_err(refused)?;
            let ids = units.iter().map(Unit::to_string).collect();
            Ok(Units { ids })
        };
        let containers = request.containers.iter().map(units);
        Ok(PreferenceResponse {
            containers: containers.collect::<Result<_, Status>>()?,
        })
    }

    /// Allocates units to containers. Checks the whole request before the first allocation.
    fn grant(&self, request: &AllocateRequest) -> Result<AllocateResponse, Status> {
        let share = |units: &Units| {
            let share = Share::of(&units.ids).map_err(refused)?;
            let unknown = share.units().find(|unit| {
                let count = self.units.get(&unit.card);
                count.is_none_or(|count| unit.number >= *count)
            });
            match unknown {
                Some(unit) => {
                    let what = format!("this node has no unit {unit}");
                    Err(Status::failed_precondition(what))
                }
                None => Ok(share),
            }
        };
        let shares: Vec<Share> = request
            .containers
            .iter()
            .map(share)
            .collect::<Result<_, _>>()?;
        let grant = |share: &Share| {
            // The container's bytes fit into 64 bits, because a container has at most
            // [`MOST_UNITS`] units.
            let bytes = share.numbers.len() as u64 * self.options.unit;
            let grant = self
                .allocations()
                .grant(share, bytes)
                .map_err(|trouble| Status::internal(format!("cannot make a group: {trouble}")))?;
            crate::say(format_args!("allocated {}", grant.name));
            Ok(self.edits(share.card, &grant))
        };
        let containers = shares.iter().map(grant);
        Ok(AllocateResponse {
            containers: containers.collect::<Result<_, Status>>()?,
        })
    }

    fn edits(&self, card: DeviceId, grant: &Grant) -> Edits {
        let text = |path: &Path| path.display().to_string();
        let mount = |host: &Path, inside: String, read_only| Mount {
            container_path: inside,
            host_path: text(host),
            read_only,
        };
        let library = &self.library;
        let mounts = vec![
            mount(library, INSIDE.into(), true),
            mount(&library.join(PRELOAD), format!("/etc/{PRELOAD}"), true),
            mount(&grant.view, SYSTEM.into(), true),
            mount(
                &grant.ledger,
                format!("{SYSTEM}/{}/ledger", grant.name),
                false,
            ),
        ];
        // The rule in the container's view selects the group. If the view is missing,
        // `GPULIMIT_GROUP` makes the library refuse all GPU memory.
        let mut variables = HashMap::from([("GPULIMIT_GROUP".into(), grant.name.clone())]);
        let mut cdi = Vec::new();
        match self.options.gpus {
            Gpus::Env => {
                variables.insert("NVIDIA_VISIBLE_DEVICES".into(), card.to_string());
            }
            Gpus::Cdi => cdi.push(CdiDevice {
                name: format!("{}={card}", self.options.cdi_kind),
            }),
        }
        Edits {
            variables,
            mounts,
            cdi,
        }
    }

    /// Locks the allocations.
    pub fn allocations(&self) -> MutexGuard<'_, Allocations> {
        // Use the lock even if another call has panicked while it held the lock. The next call or
        // sweep repairs incomplete files.
        self.allocations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused(wrong: Wrong) -> Status {
    // Shorten the error message: it is also sent as an HTTP header, and kubelet accepts only a few
    // thousand bytes of headers.
    let short = |text: String| text.chars().take(LONGEST_REFUSAL).collect::<String>();
    match wrong {
        Wrong::Full(why) => Status::resource_exhausted(short(why)),
        Wrong::Invalid(why) => Status::invalid_argument(short(why)),
    }
}

/// The calls of kubelet. The plugin has a single thread, so one call is answered after the other.
#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Wishes>, Status> {
        Ok(Response::new(WISHES))
    }

    type ListAndWatchStream = WatchStream<Result<DeviceList, Status>>;

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        Ok(Response::new(WatchStream::new(self.list.subscribe())))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferenceRequest>,
    ) -> Result<Response<PreferenceResponse>, Status> {
        self.preference(request.get_ref()).map(Response::new)
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let answer = self.grant(request.get_ref());
        if let Err(status) = &answer {
            crate::say(format_args!("refused: {}", status.message()));
        }
        answer.map(Response::new)
    }

    /// Does nothing. Kubelet does not make this call, because [`WISHES`] does not ask for it.
    async fn pre_start_container(
        &self,
        _: Request<PreStartRequest>,
    ) -> Result<Response<Empty>, Status> {
        Ok(Response::new(Empty {}))
    }
}
