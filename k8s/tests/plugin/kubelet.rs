//! A kubelet for tests: takes registrations, lists pods and calls the plugin.

use gpulimit_k8s::api::device_plugin_client::DevicePluginClient;
use gpulimit_k8s::api::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use gpulimit_k8s::api::registration_server::{Registration, RegistrationServer};
use gpulimit_k8s::api::{
    AllocateRequest, Choice, Container, ContainerDevices, Device, DeviceList, Edits, Empty, Pod,
    PodList, PreferenceRequest, RegisterRequest, Units,
};
use prost::Message;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// The calls that the test's kubelet has received, and the answers that it gives.
#[derive(Default)]
pub struct Books {
    /// The registrations, in their order.
    pub registered: Vec<RegisterRequest>,
    /// Whether the test's kubelet refuses registrations.
    pub refuses: bool,
    /// The pods and their devices.
    pub pods: PodList,
    /// How often the plugin has asked for the pods.
    pub lists: usize,
}

#[derive(Clone)]
struct Desk(Arc<Mutex<Books>>);

#[tonic::async_trait]
impl Registration for Desk {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let mut books = self.0.lock().unwrap();
        if books.refuses {
            return Err(Status::unknown("test refusal: 100 %"));
        }
        books.registered.push(request.into_inner());
        Ok(Response::new(Empty {}))
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Desk {
    async fn list(&self, _: Request<Empty>) -> Result<Response<PodList>, Status> {
        let mut books = self.0.lock().unwrap();
        books.lists += 1;
        Ok(Response::new(books.pods.clone()))
    }
}

/// A kubelet with a directory of its own.
pub struct Kubelet {
    folder: PathBuf,
    books: Arc<Mutex<Books>>,
    handle: Handle,
    tasks: Vec<JoinHandle<Result<(), tonic::transport::Error>>>,
}

impl Kubelet {
    /// Makes a kubelet that has not started.
    pub fn new(folder: PathBuf) -> Self {
        fs::create_dir(&folder).expect("a directory");
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        Self {
            folder,
            books: Arc::default(),
            handle,
            tasks: Vec::new(),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn pods_socket(&self) -> PathBuf {
        self.folder.join("pods.sock")
    }

    pub fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }

    /// Starts or restarts kubelet, which removes all sockets.
    pub fn start(&mut self) {
        self.stop();
        for entry in fs::read_dir(&self.folder).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let _inside = self.handle.enter();
        let at = |name| {
            let listener = UnixListener::bind(self.folder.join(name)).expect("a socket");
            UnixListenerStream::new(listener)
        };
        let desk = Desk(Arc::clone(&self.books));
        let registrations = Server::builder()
            .serve_with_incoming(RegistrationServer::new(desk.clone()), at("kubelet.sock"));
        let pods = Server::builder()
            .serve_with_incoming(PodResourcesListerServer::new(desk), at("pods.sock"));
        self.tasks = vec![tokio::spawn(registrations), tokio::spawn(pods)];
    }

    pub fn stop(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
    }

    /// Connects to the plugin at the socket that the last registration named.
    fn connect(&self) -> Channel {
        let endpoint = self
            .books()
            .registered
            .last()
            .expect("registered")
            .endpoint
            .clone();
        let socket = format!("unix://{}", self.folder.join(endpoint).display());
        Endpoint::from_shared(socket).unwrap().connect_lazy()
    }

    /// Calls the plugin.
    pub fn call<A>(
        &self,
        call: impl AsyncFnOnce(&mut DevicePluginClient<Channel>) -> Result<Response<A>, Status>,
    ) -> Result<A, Status> {
        let answer = self
            .handle
            .block_on(async { call(&mut DevicePluginClient::new(self.connect())).await });
        answer.map(Response::into_inner)
    }

    /// Calls any path of the plugin, with any message.
    pub fn call_path(
        &self,
        path: &'static str,
        message: impl Message + 'static,
    ) -> Result<Empty, Status> {
        self.handle.block_on(async {
            let mut plugin = Grpc::new(self.connect());
            plugin.ready().await.expect("connected");
            let path = PathAndQuery::from_static(path);
            let codec = ProstCodec::<_, Empty>::default();
            let answer = plugin.unary(Request::new(message), path, codec).await;
            answer.map(Response::into_inner)
        })
    }

    pub fn watch(&self) -> Stream {
        let stream = self.call(async |plugin| plugin.list_and_watch(Empty {}).await);
        Stream(stream.expect("a stream"), self.handle.clone())
    }

    pub fn allocate(&self, ids: &[String]) -> Result<Edits, Status> {
        let containers = vec![Units { ids: ids.to_vec() }];
        let request = AllocateRequest { containers };
        let answer = self.call(async |plugin| plugin.allocate(request).await)?;
        assert_eq!(answer.containers.len(), 1);
        Ok(answer.containers.into_iter().next().unwrap())
    }

    pub fn prefer(&self, available: &[String], size: i32) -> Result<Vec<String>, Status> {
        let containers = vec![Choice {
            available: available.to_vec(),
            must_include: Vec::new(),
            size,
        }];
        let request = PreferenceRequest { containers };
        let answer = self.call(async |plugin| plugin.get_preferred_allocation(request).await)?;
        Ok(answer.containers.into_iter().next().unwrap().ids)
    }

    /// Sets the list of pods. Each pod has one container with these units.
    pub fn set_pods(&self, pods: &[(&str, &[String])]) {
        let pod = |(name, ids): &(&str, &[String])| Pod {
            name: (*name).into(),
            namespace: "default".into(),
            containers: vec![Container {
                name: "main".into(),
                devices: vec![
                    ContainerDevices {
                        resource: "example.com/other".into(),
                        ids: vec!["x".into()],
                    },
                    ContainerDevices {
                        resource: "gpulimit.dev/gpu-memory".into(),
                        ids: ids.to_vec(),
                    },
                ],
            }],
        };
        let pods = pods.iter().map(pod).collect();
        self.books().pods = PodList { pods };
    }
}

/// The stream of `ListAndWatch`.
pub struct Stream(Streaming<DeviceList>, Handle);

impl Stream {
    pub fn next(&mut self) -> Option<Vec<Device>> {
        let list = self.1.block_on(self.0.message());
        list.ok().flatten().map(|list| list.devices)
    }
}
