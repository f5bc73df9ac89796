BEGIN TRANSACTION;
CREATE TABLE edgetune_records (
	id INTEGER NOT NULL, 
	workload VARCHAR(64) NOT NULL, 
	target VARCHAR(64) NOT NULL, 
	device VARCHAR(256) NOT NULL, 
	trace_key VARCHAR(32) NOT NULL, 
	median_s DOUBLE, 
	slow BOOLEAN NOT NULL, 
	failure_stage VARCHAR(32), 
	failure_kind VARCHAR(32), 
	created_s DOUBLE NOT NULL, 
	task_name VARCHAR(512) NOT NULL, 
	kind VARCHAR(64) NOT NULL, 
	versions JSON NOT NULL, 
	times_s JSON, 
	failure_message TEXT, 
	trace TEXT NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT edgetune_records_candidate UNIQUE (target, workload, device, trace_key), 
	CONSTRAINT edgetune_records_outcome CHECK ((median_s IS NULL) = (failure_kind IS NOT NULL))
);
INSERT INTO "edgetune_records" VALUES(1,'aaaaaaaaaaaaaaaa','0123456789abcdef','local','acb8f32ace2b8548cdb400114acbc3e9',0.0011,0,NULL,NULL,1700000000.0,'fused_conv2d_relu','window','{"tvm": "0.27.0", "edgetune": "0.1.0"}','[0.001, 0.00125, 0.0011]',NULL,'[["Split",["l1",4,4],[true,false],["l2","l3"]],[]]');
INSERT INTO "edgetune_records" VALUES(2,'aaaaaaaaaaaaaaaa','0123456789abcdef','local','a7ba2f9a42dd97704113d32092d36c2b',NULL,0,'build','crash',1700000000.0,'fused_conv2d_relu','window','{"tvm": "0.27.0", "edgetune": "0.1.0"}',NULL,'LLVM ERROR: out of registers','[[],[1]]');
INSERT INTO "edgetune_records" VALUES(3,'aaaaaaaaaaaaaaaa','0123456789abcdef','board','a5368afea6ca0b3144d8de1616a12cda',0.002,1,NULL,NULL,1700000000.0,'fused_conv2d_relu','window','{"tvm": "0.27.0", "edgetune": "0.1.0"}','[0.002]',NULL,'[[],[2]]');
CREATE TABLE edgetune_schema (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT edgetune_schema_pkc PRIMARY KEY (version_num)
);
INSERT INTO "edgetune_schema" VALUES('0001');
COMMIT;
