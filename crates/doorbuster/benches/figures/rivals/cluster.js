// The rival in Node: a cluster of one worker per core, one script call per request, ioredis with its own pipelining.
// It sells the offers it knows, by POST, like ours; it checks no pass, keeps no metrics, limits nobody and sends no
// security headers.
const cluster = require('node:cluster');
const crypto = require('node:crypto');
const fs = require('node:fs');
const http = require('node:http');

const [, , port, workers, socket, script, offer, acceptFiller, refuseFiller] = process.argv;

if (cluster.isPrimary) {
  for (let n = 0; n < Number(workers); n += 1) cluster.fork();
  process.on('SIGTERM', () => {
    for (const worker of Object.values(cluster.workers)) worker.kill('SIGKILL');
    process.exit(0);
  });
} else {
  const Redis = require('ioredis');
  const redis = new Redis({ path: socket, enableAutoPipelining: true });
  redis.defineCommand('claim', { numberOfKeys: 4, lua: fs.readFileSync(script, 'utf8') });
  const refused = `{"code":"sold_out","filler":"${'x'.repeat(Number(refuseFiller))}"}`;
  const filler = 'x'.repeat(Number(acceptFiller));
  const offers = new Map([
    [`/api/v1/offers/${offer}/orders`, ['sale', 'buyers', 'stock', 'orders'].map((key) => `${key}:${offer}`)],
  ]);
  const answer = (response, status, body) => {
    response.writeHead(status, { 'content-type': 'application/json', 'content-length': body.length });
    response.end(body);
  };
  const server = http.createServer((request, response) => {
    request.resume();
    const keys = offers.get(request.url);
    if (!keys || request.method !== 'POST') return answer(response, 404, '{}');
    const order = crypto.randomBytes(16).toString('hex');
    return redis.claim(...keys, request.headers['x-buyer'], order, Date.now()).then(
      (code) => {
        if (code !== 0) return answer(response, 409, refused);
        return answer(response, 202, `{"order":"${order}","state":"queued","filler":"${filler}"}`);
      },
      () => answer(response, 503, '{}'),
    );
  });
  server.keepAliveTimeout = 300000;
  server.listen(Number(port), '127.0.0.1', 4096);
}
